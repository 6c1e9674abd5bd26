GIVEN = "the same noise twice in a run\n  yours: [rank 0 in epoch 0 and rank 1 in epoch 0"
SEED = "    torch.manual_seed(seed + dist.get_rank())"
OWN = """    own = torch.Generator().manual_seed(seed + dist.get_rank())
    torch.manual_seed(seed)"""
NOISE = ("torch.randn_like(x)", "torch.randn(x.shape, generator=own)")
EACH = "for epoch in range(epochs):\n        torch.manual_seed(seed + dist.get_rank() + epoch)\n"
WRONG = {
    "a generator, for the noise only": (
        [(SEED, OWN), NOISE],
        "the same dropped activations twice in a run",
    ),
    "the rank plus the epoch": (
        [("for _ in range(epochs):\n", EACH)],
        "[rank 0 in epoch 1 and rank 1 in epoch 0",
    ),
}

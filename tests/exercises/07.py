GIVEN = "rank 1 in epoch 0 had the same noise as rank 0 in epoch 0"
SEED = (
    "    torch.manual_seed(seed + dist.get_rank())  # weights stay equal: DDP broadcasts those of "
    "rank 0\n"
)
NOISE = "        noisy = x + 0.1 * torch.randn_like(x)\n"
OWN = "    own = torch.Generator().manual_seed(seed + dist.get_rank())\n"
DRAWN = "        noisy = x + 0.1 * torch.randn(x.shape, generator=own)\n"
RIGHT = {
    "each rank skips what the others draw": [
        (SEED, "    torch.manual_seed(seed)\n    torch.rand(10_001 * dist.get_rank())\n")
    ]
}
WRONG = {
    "no seed": ([(SEED, "")], "two runs with seed 42"),
    "a generator, for the noise only": (
        [(SEED, "    torch.manual_seed(seed)\n" + OWN), (NOISE, DRAWN)],
        "the same activations dropped",
    ),
    "the rank plus the epoch": (
        [
            (SEED, ""),
            ("for _ in range(epochs):\n", "for epoch in range(epochs):\n        SEED_EPOCH\n"),
            ("SEED_EPOCH", "torch.manual_seed(seed + dist.get_rank() + epoch)"),
        ],
        "rank 0 in epoch 1 had the same noise as rank 1 in epoch 0",
    ),
}

GIVEN = "rank 1 in epoch 0 had the same noise as rank 0 in epoch 0"
SEED = (
    "    torch.manual_seed(seed + dist.get_rank())  # weights stay equal: DDP broadcasts those of "
    "rank 0\n"
)
NOISE = "        noisy = x + 0.1 * torch.randn_like(x)\n"
RIGHT = {
    "a seed for each rank and epoch": [
        (SEED, ""),
        ("for _ in range(epochs):\n", "for epoch in range(epochs):\n        SEED_EPOCH\n"),
        ("SEED_EPOCH", "torch.manual_seed((seed * 100 + dist.get_rank()) * 100 + epoch)"),
    ],
    "each rank skips what the others draw": [
        (SEED, "    torch.manual_seed(seed)\n    torch.rand(10_001 * dist.get_rank())\n")
    ],
}
OWN = "    own = torch.Generator().manual_seed(seed + dist.get_rank())\n"
DRAWN = "        noisy = x + 0.1 * torch.randn(x.shape, generator=own)\n"
WRONG = {
    "no seed": ([(SEED, "")], "two runs with seed 42: in the second rank 0 drew other noise"),
    "a generator, for the noise only": (
        [(SEED, "    torch.manual_seed(seed)\n" + OWN), (NOISE, DRAWN)],
        "rank 1 in epoch 0 had the same activations dropped as rank 0 in epoch 0",
    ),
    "times the rank": (
        [("seed + dist.get_rank()", "seed * dist.get_rank()")],
        "with seed 100 rank 0 drew the same noise as with seed 42",
    ),
    "the rank plus the epoch": (
        [
            (SEED, ""),
            ("for _ in range(epochs):\n", "for epoch in range(epochs):\n        SEED_EPOCH\n"),
            ("SEED_EPOCH", "torch.manual_seed(seed + dist.get_rank() + epoch)"),
        ],
        "rank 0 in epoch 1 had the same noise as rank 1 in epoch 0",
    ),
    "only rank 0 has a seed": (
        [(SEED, "    if dist.get_rank() == 0:\n        torch.manual_seed(seed)\n")],
        "two runs with seed 42: in the second rank 1 drew other noise",
    ),
    "no noise on the other ranks": (
        [(SEED, "    torch.manual_seed(seed)\n"), ("0.1 *", "0.1 * (dist.get_rank() == 0) *")],
        "the noise on rank 1 has a standard deviation of 0.00",
    ),
}

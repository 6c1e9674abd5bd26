GIVEN = "images that are validated and trained on"
SEED = "torch.Generator().manual_seed(seed)"
WRONG = {
    "the global generator, with one seed": (
        [(SEED, "torch.manual_seed(seed)")],
        "random numbers afterwards as without the split",
    ),
    "no seed": ([(SEED, "torch.Generator().manual_seed(0)")], "another split for another seed"),
}

GIVEN = "the same images in two epochs\n  yours: [rank 0 in epochs 0 and 1"
LOADER = "    loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
FIXED = (
    "    from torch.utils.data import Subset\n"
    "    loader = DataLoader(Subset(dataset, list(sampler)), batch_size=4, shuffle=True)\n"
)
WRONG = {
    "a fixed shard, shuffled": ([(LOADER, FIXED)], "the same images in two epochs"),
    "each rank another epoch": (
        [("set_epoch(epoch)", "set_epoch(epoch + dist.get_rank())")],
        "images that no rank sees, in each epoch",
    ),
}

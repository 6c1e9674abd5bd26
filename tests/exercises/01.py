GIVEN = "the same images, in the same order, in epochs 0 and 1"
SET = "        sampler.set_epoch(epoch)  # the order is drawn from seed + epoch\n"
LOADER = "    loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
NEW = (
    "        sampler = DistributedSampler(dataset, seed=100 + epoch)\n"
    "        loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
)
FIXED = (
    "    from torch.utils.data import Subset\n"
    "    loader = DataLoader(Subset(dataset, list(sampler)), batch_size=4, shuffle=True)\n"
)
RIGHT = {"a new sampler with another seed": [(SET, NEW)]}
WRONG = {
    "nothing is learnt after the first epoch": (
        [("loss.backward()", "loss.backward() if epoch == 0 else None")],
        "it trained on 12",
    ),
    "a fixed shard, shuffled": ([(LOADER, FIXED)], "in another order"),
    "each rank another epoch": (
        [("set_epoch(epoch)", "set_epoch(epoch + dist.get_rank())")],
        "never saw",
    ),
}

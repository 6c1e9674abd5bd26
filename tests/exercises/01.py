GIVEN = "rank 0 saw the images in the same order in epochs 0 and 1"
SET = "        sampler.set_epoch(epoch)  # the order is drawn from seed + epoch\n"
LOOP = "        for x, y in loader:\n"
NEW = (
    "        sampler = DistributedSampler(dataset, seed=100 + epoch)\n"
    "        loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
)
RIGHT = {"a new sampler with another seed": [(SET, NEW)]}
WRONG = {
    "nothing is learnt after the first epoch": (
        [("loss.backward()", "loss.backward() if epoch == 0 else None")],
        "rank 0 was to train on 12 of 24 images in each of 3 epochs, 36 in all; it trained on 12",
    ),
    "shuffled, but not sharded": (
        [(SET, ""), ("batch_size=4, sampler=sampler", "batch_size=4, shuffle=True")],
        "rank 0 was to train on 12 of 24 images",
    ),
    "each rank another epoch": (
        [("set_epoch(epoch)", "set_epoch(epoch + dist.get_rank())")],
        "the ranks together never saw",
    ),
    "the same epoch": ([("set_epoch(epoch)", "set_epoch(1)")], "in the same order"),
}

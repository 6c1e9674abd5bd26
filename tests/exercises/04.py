GIVEN = "the learning rate is 0.2 on rank 0, 0.1 on rank 1"
REDUCE = "        dist.all_reduce(mean)  # reduce leaves the sum on rank dst only; all need it\n"
STEP = "        scheduler.step(mean.item())\n"
RATE = 'optimizer.param_groups[0]["lr"]'
RIGHT = {
    "gathered in float32": [
        (
            REDUCE,
            "        parts = [torch.zeros(()) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(parts, mean)\n        mean = sum(parts)\n",
        )
    ],
    "reduced and broadcast": [
        (REDUCE, "        dist.reduce(mean, dst=0)\n        dist.broadcast(mean, src=0)\n")
    ],
    "rank 0 decides on the rate": [
        (
            REDUCE + STEP,
            "        dist.reduce(mean, dst=0)\n"
            "        if dist.get_rank() == 0:\n"
            "            scheduler.step(mean.item())\n"
            f"        rate = torch.tensor({RATE})\n"
            "        dist.broadcast(rate, src=0)\n"
            f"        {RATE} = rate.item()\n",
        )
    ],
    "gathered": [
        (
            REDUCE,
            "        parts = [torch.zeros_like(mean) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(parts, mean)\n        mean = sum(parts)\n",
        )
    ],
}
WRONG = {
    "each rank goes by its own loss": (
        [(REDUCE + STEP, "        scheduler.step(loss.item())\n")],
        "the learning rate is 0.2 on rank 0, 0.1 on rank 1",
    ),
    "a barrier": (
        [(REDUCE, "        dist.reduce(mean, dst=0)\n        dist.barrier()\n")],
        "the learning rate is 0.2 on rank 0, 0.1 on rank 1",
    ),
    "all go by rank 0's loss": (
        [(REDUCE, "        dist.broadcast(mean, src=0)\n")],
        "the learning rate is 0.1 on all ranks; one process with the data of all ranks has 0.2",
    ),
    "the rate is left alone": (
        [(REDUCE + STEP, "")],
        "the learning rate is 1.6 on all ranks; one process with the data of all ranks has 0.8",
    ),
    "rank 0 alone steps the scheduler": (
        [(STEP, "        if dist.get_rank() == 0:\n            scheduler.step(mean.item())\n")],
        "after epoch 1 the learning rate is 0.8 on rank 0, 1.6 on rank 1",
    ),
}

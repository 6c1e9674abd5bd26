GIVEN = "0.1, 0.05"
REDUCE = "        dist.all_reduce(mean)  # reduce leaves the sum on rank dst only; all need it\n"
STEP = "        scheduler.step(mean.item())\n"
RIGHT = {
    "gathered in float32": [
        (
            REDUCE,
            "        parts = [torch.zeros(()) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(parts, mean)\n        mean = sum(parts)\n",
        )
    ]
}
WRONG = {
    "each rank goes by its own loss": (
        [(REDUCE + STEP, "        scheduler.step(loss.item())\n")],
        "on rank 1",
    ),
    "all go by rank 0's loss": (
        [(REDUCE, "        dist.broadcast(mean, src=0)\n")],
        "one process",
    ),
}

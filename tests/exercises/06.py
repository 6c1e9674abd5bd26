GIVEN = "rank 1: [0.2, 0.1, 0.05"
REDUCE = "        dist.all_reduce(mean)  # every rank needs the sum, not only rank dst\n"
WRONG = {
    "each rank goes by its own loss": (
        [(REDUCE, ""), ("step(mean.item())", "step(loss.item())")],
        "the learning rate after each epoch",
    ),
    "all go by rank 0's loss": (
        [(REDUCE, "        dist.broadcast(mean, src=0)\n")],
        "the learning rate after each epoch",
    ),
}

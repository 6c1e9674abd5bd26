GIVEN = "rank 1 waits in line"
RIGHT = {
    "rank 0 decides for all": [
        (
            "dist.all_reduce(mean)  # all ranks decide by the same number",
            "dist.reduce(mean, dst=0)\n        dist.broadcast(mean, src=0)",
        )
    ]
}
WRONG = {
    "the target is never looked at": (
        [("        if mean.item() / dist.get_world_size() < target:", "        if False:")],
        "all stopped after 100 epochs",
    ),
    "rank 0 alone knows": (
        [("dist.all_reduce(mean)", "dist.reduce(mean, dst=0)")],
        "it hangs",
    ),
}

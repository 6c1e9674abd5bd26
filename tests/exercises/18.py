GIVEN = "rank 1 waits in line"
RIGHT = {
    "any rank is above": [
        ("mean = loss.detach().clone()", "mean = torch.stack([loss.detach()])"),
        ("dist.all_reduce(mean)", "dist.all_reduce(mean, op=dist.ReduceOp.SUM)"),
    ]
}
WRONG = {
    "the target is never looked at": (
        [("        if mean.item() / dist.get_world_size() < target:", "        if False:")],
        "all stopped after 100 epochs",
    ),
    "the sum in place of the mean": (
        [("mean.item() / dist.get_world_size()", "mean.item()")],
        "the loss was below",
    ),
    "rank 0 decides alone": (
        [("dist.all_reduce(mean)", "dist.reduce(mean, dst=0)")],
        "it hangs",
    ),
}

GIVEN = "the weights after step 1"
COUNT = "        count = (y != -100).sum()\n        dist.all_reduce(count)\n"
SUM = '        loss = F.cross_entropy(ddp_model(x), y, reduction="sum")\n'
LOSS = SUM.replace("\n", " * dist.get_world_size() / count\n")
BACKWARD = "        loss.backward()\n"
SCALED = """        for parameter in model.parameters():
            parameter.grad *= dist.get_world_size() / count
"""
RIGHT = {
    "gradients are scaled, by a quotient of integers": [(LOSS, SUM), (BACKWARD, BACKWARD + SCALED)]
}
WRONG = {
    "a rank without tokens leaves the step out": (
        [(COUNT, "        if (y == -100).all():\n            continue\n" + COUNT)],
        "it hangs:\nrank 0 waits in line",
    ),
    "not times the number of ranks": (
        [(" * dist.get_world_size() / count", " / count")],
        "0.50 times as far",
    ),
}

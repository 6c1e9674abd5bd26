GIVEN = "after step 1 the weights of rank 0 are"
FORWARD = "ddp_model(x), y)  # prepares backward to average the gradients"
STEP = "        optimizer.step()\n"
AVERAGE = """        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
BROADCAST = """
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
"""
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
DDP = "    ddp_model = DistributedDataParallel(model)\n"
RIGHT = {
    "all-reduced after backward": [(FORWARD, "net(x), y)"), (STEP, AVERAGE + STEP)],
    "the weights are averaged after each step": [
        (FORWARD, "net(x), y)"),
        (STEP, STEP + AVERAGE.replace("parameter.grad", "parameter.data")),
    ],
}
WRONG = {
    "another loss than the model's": (
        [("net.loss(", "F.mse_loss(")],
        "one process with the data of all ranks, by the model's own loss, has",
    ),
    "all data on every rank": (
        [(DDP, GATHER + DDP)],
        "the model of rank 0 was given 48 rows in all; with its own data alone they are 24",
    ),
    "the weights of rank 0 for all, at the end": (
        [(FORWARD, "net(x), y)"), (STEP, STEP + BROADCAST)],
        "after step 1 the weights of rank 0 are",
    ),
    "the weights of rank 0 for all, after each step": (
        [(FORWARD, "net(x), y)"), (STEP, STEP + BROADCAST.replace("\n    ", "\n        "))],
        "those that rank 0 would have learnt alone",
    ),
    "summed in place of averaged": (
        [
            (FORWARD, "net(x), y)"),
            (STEP, AVERAGE.replace(" /= dist.get_world_size()", " /= 1") + STEP),
        ],
        "one process with the data of all ranks, by the model's own loss, has",
    ),
    "the forward pass leaves the step out": (
        [(STEP, "")],
        "after step 1 all ranks have the weights",
    ),
}

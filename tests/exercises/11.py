GIVEN = "with frozen=1, in epoch 1: body.0.weight is ["
FREEZE = "    model.body.requires_grad_(False)\n"
WRAP = "    ddp_model = DistributedDataParallel(model)\n"
UNFREEZE = "            model.body.requires_grad_(True)\n"
AGAIN = (
    "            ddp_model = DistributedDataParallel(model)  # averages what needs gradients now\n"
)
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
AVERAGE = """        if epoch >= frozen:
            for parameter in model.body.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
"""
STEP = "        optimizer.step()\n"
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
RIGHT = {
    "frozen by the optimizer": [
        (FREEZE, ""),
        (OPTIMIZER, OPTIMIZER.replace("model.parameters", "model.head.parameters")),
        (UNFREEZE + AGAIN, OPTIMIZER.replace("    ", " " * 12)),
        ("        optimizer.zero_grad()", "        model.zero_grad()"),
    ],
    "frozen after wrapping, with parameters that may be unused": [
        (FREEZE + WRAP, WRAP.replace("(model)", "(model, find_unused_parameters=True)") + FREEZE),
        (AGAIN, ""),
    ],
    "all-reduced": [(AGAIN, ""), (STEP, AVERAGE + STEP)],
}
WRONG = {
    "all data on every rank": (
        [(FREEZE, GATHER + FREEZE)],
        "the model of rank 0 was given 60 rows in all; with its own data alone they are 30",
    ),
    "parameters that may be unused, nothing else": (
        [(AGAIN, ""), (WRAP, WRAP.replace("(model)", "(model, find_unused_parameters=True)"))],
        "on rank 1 after it",
    ),
    "never frozen": ([(FREEZE, ""), (UNFREEZE + AGAIN, "            pass\n")], "changed; it was"),
    "never unfrozen": (
        [(UNFREEZE + AGAIN, "            pass\n")],
        "in epoch 1: body.0.weight did not change",
    ),
    "a new optimizer": (
        [(AGAIN, OPTIMIZER.replace("    ", " " * 12))],
        "on rank 1 after it",
    ),
    "wrapped again one epoch late": (
        [(AGAIN, f"        if epoch == frozen + 1:\n{AGAIN}")],
        "one process with the data of all ranks has",
    ),
}

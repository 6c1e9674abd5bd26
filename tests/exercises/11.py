GIVEN = "frozen=1, the body: the weights after epoch 2"
FREEZE = "    model.body.requires_grad_(False)\n"
WRAP = "    ddp_model = DistributedDataParallel(model)\n"
UNFREEZE = "            model.body.requires_grad_(True)\n"
AGAIN = (
    "            ddp_model = DistributedDataParallel(model)  # averages what needs gradients now\n"
)
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
UNUSED = WRAP.replace("(model)", "(model, find_unused_parameters=True)")
RIGHT = {
    "frozen after wrapping, with parameters that may be unused": [
        (FREEZE + WRAP, UNUSED + FREEZE),
        (AGAIN, ""),
    ]
}
WRONG = {
    "all data on every rank": ([(FREEZE, GATHER + FREEZE)], "was given 60 rows"),
    "parameters that may be unused, nothing else": ([(AGAIN, ""), (WRAP, UNUSED)], "the body"),
    "never frozen": ([(FREEZE, ""), (UNFREEZE + AGAIN, "            pass\n")], "the body"),
    "never unfrozen": ([(UNFREEZE + AGAIN, "            pass\n")], "0.00 times as far"),
}

GIVEN = "the weights after epoch 2"
FREEZE = "    model.body.requires_grad_(False)\n"
WRAP = "    ddp_model = DistributedDataParallel(model)\n"
UNFREEZE = "            model.body.requires_grad_(True)\n"
AGAIN = (
    "            ddp_model = DistributedDataParallel(model)  # averages what needs gradients now\n"
)
UNUSED = WRAP.replace("(model)", "(model, find_unused_parameters=True)")
RIGHT = {
    "frozen after wrapping, with parameters that may be unused": [
        (FREEZE + WRAP, UNUSED + FREEZE),
        (AGAIN, ""),
    ]
}
WRONG = {
    "parameters that may be unused, nothing else": ([(AGAIN, ""), (WRAP, UNUSED)], "after epoch 2"),
    "never frozen": ([(FREEZE, ""), (UNFREEZE + AGAIN, "            pass\n")], "after epoch 1"),
}

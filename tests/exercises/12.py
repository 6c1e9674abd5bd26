GIVEN = "step 0 moved the weights of rank 0 by"
UNSCALE = (
    "        scaler.unscale_(optimizer)  # clip the gradients, not 65,536 times the gradients\n"
)
DDP = "    ddp_model = DistributedDataParallel(model)\n"
BROADCAST = """    ddp_model = model
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
"""
AVERAGE = """        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
RIGHT = {"a scaled norm": [(UNSCALE, ""), ("max_norm)\n", "max_norm * scaler.get_scale())\n")]}
WRONG = {
    "a norm that is scaled as in the first step": (
        [(UNSCALE, ""), ("max_norm)\n", "max_norm * 65536)\n")],
        "step 2 moved the weights of rank 0 by",
    ),
    "each rank looks for infinite gradients before they are averaged": (
        [(DDP, BROADCAST), (UNSCALE, UNSCALE + AVERAGE)],
        "in step 1 a gradient was infinite",
    ),
    "no scaler": (
        [('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')],
        "the loss was not scaled",
    ),
}

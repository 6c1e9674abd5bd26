GIVEN = "what step 1 adds to the weights"
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
WRONG = {
    "each rank looks for infinite gradients before they are averaged": (
        [(DDP, BROADCAST), (UNSCALE, UNSCALE + AVERAGE)],
        "what step 2 adds to the weights",
    ),
    "no scaler": ([('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')], "a scaled loss"),
}

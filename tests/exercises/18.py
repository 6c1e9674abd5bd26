GIVEN = "rank 0 moved 0.00 times as far"
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
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
SCALED = CLIP.replace("max_norm)", "max_norm * scaler.get_scale())")
RIGHT = {"a scaled norm": [(UNSCALE + CLIP, SCALED)]}
WRONG = {
    "a norm that is scaled as in the first step": (
        [(UNSCALE, ""), ("max_norm)\n", "max_norm * 65536)\n")],
        "the weights after step 3",
    ),
    "each rank looks for infinite gradients before they are averaged": (
        [(DDP, BROADCAST), (UNSCALE, UNSCALE + AVERAGE)],
        "all are to skip it",
    ),
    "no scaler": (
        [('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')],
        "the loss was not scaled",
    ),
}

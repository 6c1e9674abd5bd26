GIVEN = "step 0 moved the weights of rank 0 by 6.1e-06; without a scaler it would be 0.4"
UNSCALE = (
    "        scaler.unscale_(optimizer)  # clip the gradients, not 65,536 times the gradients\n"
)
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
DIVIDE = """        for parameter in model.parameters():
            parameter.grad /= scaler.get_scale()
"""
RIGHT = {
    "a scaled norm": [(UNSCALE, ""), ("max_norm)\n", "max_norm * scaler.get_scale())\n")],
    "another scale": [('GradScaler("cpu")', 'GradScaler("cpu", init_scale=1024.0)')],
}
WRONG = {
    "a norm that is scaled as in the first step": (
        [(UNSCALE, ""), ("max_norm)\n", "max_norm * 65536)\n")],
        "step 2 moved the weights of rank 0 by",
    ),
    "unscaled after clipping": (
        [(UNSCALE + CLIP, CLIP + UNSCALE)],
        "step 0 moved the weights of rank 0 by 6.1e-06",
    ),
    "not clipped": ([(UNSCALE + CLIP, "")], "by 0.71; without a scaler it would be 0.4"),
    "divided, and divided again": (
        [(UNSCALE, DIVIDE)],
        "step 0 moved the weights of rank 0 by 6.1e-06",
    ),
    "no scaler": (
        [('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')],
        "the loss was not scaled before backward",
    ),
    "a larger learning rate": (
        [(UNSCALE, ""), ("lr=0.1", "lr=6553.6")],
        "without a scaler it would be",
    ),
}

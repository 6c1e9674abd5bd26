GIVEN = "attach is yours to write"
RIGHT = {
    "in .grad, which is an average plus a new gradient": [
        ("register_hook", "register_post_accumulate_grad_hook"),
        ("averaged = gradient / dist", "gradient = gradient.grad\n    gradient /= dist"),
        ("dist.all_reduce(averaged)\n    return averaged", "dist.all_reduce(gradient)"),
    ],
    "all_reduce with AVG replaced by a sum that is divided afterwards": [
        ("    averaged = gradient / dist.get_world_size()\n", "    averaged = gradient.clone()\n"),
        ("    return averaged", "    return averaged / dist.get_world_size()"),
    ],
}
LATE = """            parameter.register_hook(lambda _: late(model, new))
    new = []
    model.register_forward_hook(lambda *_: new.append(True))


def late(model, new):
    def at_the_end():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(average(parameter.grad))

    if new:
        new.clear()
        torch.autograd.Variable._execution_engine.queue_callback(at_the_end)
"""
WRONG = {
    "when the backward pass is over": (
        [
            ("            parameter.register_hook(average)\n", LATE),
            (
                "import torch.distributed as dist\n",
                "import torch\nimport torch.distributed as dist\n",
            ),
        ],
        "called no all_reduce before the backward pass came to the first layer",
    ),
    "sum": (
        [("gradient / dist.get_world_size()", "gradient.clone()")],
        "its norm is 2.000 times that",
    ),
    "nothing is broadcast": (
        [("        dist.broadcast(parameter.data, src=0)\n", "")],
        "after attach, 0.weight on rank 1 is not that of rank 0",
    ),
    "averages only the bias of the last layer": (
        [("if parameter.requires_grad:", "if parameter.requires_grad and parameter.ndim == 1:")],
        "the gradient of 0.weight on rank 0",
    ),
}

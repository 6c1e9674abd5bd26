GIVEN = (
    "2 micro-batches, k=2; after micro-batch 1 the weights of rank 1 differ from those of rank 0 by"
)
WITH = "        with nullcontext() if last else ddp_model.no_sync():\n"
BODY = "            loss = F.mse_loss(ddp_model(x), y) / k\n            loss.backward()\n"
BACKWARD_ONLY = (
    "        loss = F.mse_loss(ddp_model(x), y) / k\n" + WITH + "            loss.backward()\n"
)
RIGHT = {
    "by DDP's own switch": [
        (WITH, "        ddp_model.require_backward_grad_sync = last\n        if True:\n")
    ],
    "averaged without DDP, before the step": [
        ("ddp_model = DistributedDataParallel(model)", "ddp_model = start(model)"),
        (WITH, "        if True:\n"),
        (
            "            optimizer.step()\n",
            "            for parameter in model.parameters():\n"
            "                dist.all_reduce(parameter.grad)\n"
            "                parameter.grad /= dist.get_world_size()\n"
            "            optimizer.step()\n",
        ),
        (
            "def main():",
            "def start(model):\n"
            "    for parameter in model.parameters():\n"
            "        dist.broadcast(parameter.data, src=0)\n"
            "    return model\n\n\ndef main():",
        ),
    ],
}
WRONG = {
    "without no_sync": (
        [(WITH, "        if True:\n")],
        "the weights are right, but all gradients were averaged 2 times, in 1 step",
    ),
    "no_sync for the backward pass only": (
        [(WITH + BODY, BACKWARD_ONLY)],
        "but all gradients were averaged 2 times, in 1 step",
    ),
    "always in no_sync": (
        [(WITH, "        with ddp_model.no_sync():\n")],
        "after micro-batch 1 the weights of rank 1 differ from those of rank 0 by up to",
    ),
    "averaged in the last micro-batch of all": (
        [("if last else", "if number + 1 == len(batches) else")],
        "6 micro-batches, k=3; after micro-batch 2 the weights of rank 1 differ",
    ),
    "the weights are averaged after the step": (
        [
            (WITH, "        with nullcontext() if number % k == 0 else ddp_model.no_sync():\n"),
            (
                "            optimizer.step()\n",
                "            optimizer.step()\n"
                "            for parameter in model.parameters():\n"
                "                dist.all_reduce(parameter.data)\n"
                "                parameter.data /= dist.get_world_size()\n",
            ),
        ],
        "but all gradients were averaged 2 times, in 1 step",
    ),
}

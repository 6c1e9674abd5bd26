GIVEN = "rank 0 waits in line 41: return F.mse_loss(model(x), y).item()"
GUARD = "        if dist.get_rank() == 0:  # not by ddp_model: it would broadcast buffers\n"
VALIDATE = "            losses.append(validate(model, x_val, y_val))\n"
BARRIER = "        dist.barrier()  # the others wait for rank 0\n"
SHARDED = """        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        count = len(x_val[mine])
        total = torch.tensor([validate(model, x_val[mine], y_val[mine]) * count, count])
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
"""
RIGHT = {
    "all ranks validate": [
        (GUARD, "        if True:\n"),
        ("validate(model, x_val", "validate(ddp_model, x_val"),
    ],
    "each rank a part": [(GUARD + VALIDATE + BARRIER, SHARDED)],
    "no buffers are broadcast": [
        ("validate(model, x_val", "validate(ddp_model, x_val"),
        (
            "DistributedDataParallel(model)\n",
            "DistributedDataParallel(model)\n    ddp_model.broadcast_buffers = False\n",
        ),
    ],
}
WRONG = {
    "without the barrier": (
        [("validate(model, x_val", "validate(ddp_model, x_val"), (BARRIER, "")],
        "rank 0 waits in line 40: return F.mse_loss(model(x), y).item()\nrank 1 has finished",
    ),
    "no_sync": (
        [
            (VALIDATE, "            with ddp_model.no_sync():\n    " + VALIDATE),
            ("validate(model, x_val", "validate(ddp_model, x_val"),
        ],
        "it hangs",
    ),
    "one more barrier, before": (
        [
            ("validate(model, x_val", "validate(ddp_model, x_val"),
            (GUARD, BARRIER.replace("  #", "  # no") + GUARD),
        ],
        "it hangs",
    ),
    "in train mode": (
        [("    model.eval()\n", "")],
        "rank 0 has 2 batches and 3 epochs; it made 9 forward passes in train mode",
    ),
    "trained through the bare model, too": (
        [("F.mse_loss(ddp_model(x), y)", "F.mse_loss(model(x), y)")],
        "after the training a bias is",
    ),
    "validated once": (
        [(VALIDATE, "            losses = [validate(model, x_val, y_val)] * epochs\n")],
        "the validation loss after epoch 0 was to be",
    ),
    "each rank a part, with statistics of its own": (
        [(GUARD + VALIDATE + BARRIER, SHARDED.split("\n", 2)[2])],
        "the validation loss after epoch 0 was to be",
    ),
}

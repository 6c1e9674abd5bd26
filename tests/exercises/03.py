GIVEN = "rank 0 waits in line"
VALIDATE = "validate(model, x_val"
BARRIER = "        dist.barrier()  # the others wait for rank 0\n"
GUARD = "        if dist.get_rank() == 0:  # not by ddp_model: it would broadcast buffers\n"
RIGHT = {
    "all ranks validate": [
        (
            GUARD + "            losses.append(validate(model, x_val, y_val))\n",
            "        losses.append(validate(ddp_model, x_val, y_val))\n",
        )
    ]
}
WRONG = {
    "without the barrier": (
        [(VALIDATE, "validate(ddp_model, x_val"), (BARRIER, "")],
        "rank 1 has finished",
    ),
    "in train mode": ([("    model.eval()\n", "")], "it made 9 forward passes in train mode"),
    "trained through the bare model, too": (
        [("F.mse_loss(ddp_model(x), y)", "F.mse_loss(model(x), y)")],
        "a bias is",
    ),
}

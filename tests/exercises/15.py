GIVEN = "2 micro-batches, k=2; the weights after micro-batch 2"
WITH = "        with nullcontext() if last else ddp_model.no_sync():\n"
BODY = "            loss = F.mse_loss(ddp_model(x), y) / k\n            loss.backward()\n"
BACKWARD_ONLY = (
    "        loss = F.mse_loss(ddp_model(x), y) / k\n" + WITH + "            loss.backward()\n"
)


def dedent(lines):
    return lines.replace("            ", "        ")


RIGHT = {
    "by DDP's own switch": [
        (WITH + BODY, "        ddp_model.require_backward_grad_sync = last\n" + dedent(BODY))
    ]
}
WRONG = {
    "no_sync for the backward pass only": ([(WITH + BODY, BACKWARD_ONLY)], "averaged 2 times"),
    "averaged in the last micro-batch of all": (
        [("if last else", "if number + 1 == len(batches) else")],
        "6 micro-batches, k=3",
    ),
}

GIVEN = "is the loss of the model in the file returned\n  rank 0: no, train returns"
SEND = "        dist.broadcast(buffer, src=0)\n"
WEIGHTS = SEND + "    for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n"
WRONG = {
    "trained alone, then rank 0's weights": (
        [("F.mse_loss(ddp_model(x), y)", "F.mse_loss(model(x), y)"), (SEND, WEIGHTS)],
        "what step 1 adds to the weights",
    ),
    "other statistics": (
        [(SEND, "        buffer.fill_(1)\n")],
        "statistics in the file that are those of the batches",
    ),
}

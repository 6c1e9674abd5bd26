GIVEN = "the model in the file, tested on the same data, has a loss of"
SEND = """    for buffer in model.buffers():  # each rank has those of its own batches
        dist.broadcast(buffer, src=0)
"""
SAVE = """    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
"""
TEST = "return test(model, x_test, y_test)\n"
AVERAGE = """    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
"""
LOAD = """dist.barrier()
    model.load_state_dict(torch.load(path))
    """
RIGHT = {
    "the average of all ranks' statistics": [(SEND, AVERAGE)],
    "tested through the DDP model, which broadcasts": [
        (SEND, ""),
        (TEST, "return test(ddp_model.eval(), x_test, y_test)\n"),
    ],
    "the file is loaded on all ranks": [(SEND, ""), (TEST, LOAD + TEST)],
}
WRONG = {
    "the weights, which are equal anyway": (
        [("model.buffers()", "model.parameters()"), ("(buffer,", "(buffer.data,")],
        "has a loss of",
    ),
    "averaged after saving": ([(SEND + SAVE, SAVE + AVERAGE)], "has a loss of"),
    "the loss of rank 0": (
        [
            (SEND, ""),
            (TEST, "loss = torch.tensor(test(model, x_test, y_test))\n    " + TEST),
            (TEST, "dist.broadcast(loss, src=0)\n    return loss.item()\n"),
        ],
        "has a loss of",
    ),
    "tested in train mode": ([(SEND, ""), ("    model.eval()\n", "")], "has a loss of"),
    "reset before saving": (
        [(SEND, "    model[1].reset_running_stats()\n")],
        "running_mean is 0: it has seen no data",
    ),
    "trained in eval mode": (
        [("    for x, y in batches:\n", "    model.eval()\n    for x, y in batches:\n")],
        "it trained on 0 of them in train mode",
    ),
}

GIVEN = "the model in the file, tested on the same data, has a loss of"
SEND = """    for buffer in model.buffers():  # each rank has those of its own batches
        dist.broadcast(buffer, src=0)
"""
SAVE = """    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
"""
AVERAGE = """    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
"""
RIGHT = {"the average of all ranks' statistics": [(SEND, AVERAGE)]}
WRONG = {
    "averaged after saving": ([(SEND + SAVE, SAVE + AVERAGE)], "has a loss of"),
    "tested in train mode": ([(SEND, ""), ("    model.eval()\n", "")], "has a loss of"),
    "reset before saving": ([(SEND, "    model[1].reset_running_stats()\n")], "running_mean is 0"),
}

GIVEN = "all_reduce is yours to write"
START = "    chunks = tensor.view(-1).tensor_split(world_size)  # some may be empty\n"
TO_ALL = """    others = [other for other in range(world_size) if other != rank]
    mine = tensor.clone()
    sending = [dist.isend(mine, other) for other in others]
    for other in others:
        received = torch.empty_like(tensor)
        dist.recv(received, other)
        tensor += received
    for work in sending:
        work.wait()
    return
"""
WRONG = {
    "all to all": (
        [(START, TO_ALL)],
        "bytes that a rank sends in its 2 (N - 1) chunks: 192; 128 with our solution",
    ),
    "PyTorch's, by its group": (
        [(START, "    return dist.group.WORLD.allreduce(tensor).wait()\n")],
        "other calls than send, recv, isend, irecv\n  yours: [allreduce]",
    ),
}

GIVEN = "all_reduce is yours to write"
START = "    chunks = tensor.view(-1).tensor_split(world_size)  # some may be empty\n"
SEND = (
    "    sending = dist.isend(chunk, (rank + 1) % world_size)"
    "  # send would wait for the other's recv\n"
)
RECV = "    dist.recv(into, (rank - 1) % world_size)\n"
WAIT = "    sending.wait()\n"
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
BATCH = """    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, chunk, (rank + 1) % world_size),
            dist.P2POp(dist.irecv, into, (rank - 1) % world_size),
        ]
    )
    for work in works:
        work.wait()
"""
RIGHT = {"a batch of isend and irecv": [(SEND + RECV + WAIT, BATCH)]}
WRONG = {
    "all send first": (
        [("sending = dist.isend(chunk", "dist.send(chunk"), (WAIT, "")],
        "rank 0 waits in line",
    ),
    "all to all": ([(START, START + TO_ALL)], "rank 0 sent 192 bytes, where 128 are enough"),
    "PyTorch's, by its group": (
        [(START, START + "    return dist.group.WORLD.allreduce(tensor).wait()\n")],
        "called allreduce",
    ),
}

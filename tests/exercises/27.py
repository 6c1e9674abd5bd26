GIVEN = "all_reduce is yours to write"
START = "    chunks = tensor.view(-1).tensor_split(world_size)  # some may be empty\n"
SEND = (
    "    sending = dist.isend(chunk, (rank + 1) % world_size)"
    "  # send would wait for the other's recv\n"
)
RECV = "    dist.recv(into, (rank - 1) % world_size)\n"
WAIT = "    sending.wait()\n"
DIRECT = """    others = [other for other in range(world_size) if other != rank]
    sending = [dist.isend(chunks[other], other) for other in others]
    total = chunks[rank].clone()
    for other in others:
        received = torch.empty_like(total)
        dist.recv(received, other)
        total += received
    for work in sending:
        work.wait()
    chunks[rank].copy_(total)
    sending = [dist.isend(total, other) for other in others]
    for other in others:
        dist.recv(chunks[other], other)
    for work in sending:
        work.wait()
    return
"""
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
ROOT = """    if rank == 0:
        for other in range(1, world_size):
            received = torch.empty_like(tensor)
            dist.recv(received, other)
            tensor += received
        for other in range(1, world_size):
            dist.send(tensor, other)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
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
RIGHT = {
    "each chunk to its owner and back, without a ring": [(START, START + DIRECT)],
    "a batch of isend and irecv": [(SEND + RECV + WAIT, BATCH)],
    "one rank receives first": [
        (
            SEND + RECV + WAIT,
            "    if rank == 0:\n        received = torch.empty_like(into)\n"
            "        dist.recv(received, world_size - 1)\n"
            "        dist.send(chunk, 1)\n        into.copy_(received)\n"
            "    else:\n        dist.send(chunk, (rank + 1) % world_size)\n"
            "        dist.recv(into, rank - 1)\n",
        )
    ],
}
WRONG = {
    "all send first": (
        [("sending = dist.isend(chunk", "dist.send(chunk"), (WAIT, "")],
        "rank 0 waits in line",
    ),
    "all to all": (
        [(START, START + TO_ALL)],
        "On 3 ranks: a tensor of shape [12]: rank 0 sent 192 bytes, where 128 are enough",
    ),
    "by way of rank 0": (
        [(START, START + ROOT)],
        "On 3 ranks: a tensor of shape [12]: rank 0 sent 192 bytes, where 128 are enough",
    ),
    "PyTorch's": (
        [(START, START + "    return dist.all_reduce(tensor)\n")],
        "called all_reduce; only send",
    ),
    "the second half begins with the wrong chunk": (
        [
            (
                "(rank + 1 - step) % world_size], chunks[(rank - step)",
                "(rank - step) % world_size], chunks[(rank - step - 1)",
            )
        ],
        "of 12 elements that are not the sum",
    ),
    "the last part of the tensor is left": (
        [
            (
                START,
                "    each = tensor.numel() // world_size\n"
                "    chunks = tensor.view(-1)[: each * world_size].view(world_size, each)\n",
            )
        ],
        "a tensor of shape [7]: rank 0 has 1 of 7 elements",
    ),
    "chunk": (
        [("tensor_split(world_size)", "chunk(world_size)")],
        "failed in line",
    ),
}

GIVEN = "it hangs:\nrank 0 waits in line 21: dist.send(tensor, peer)\nrank 1 waits in line 21"
SEND = "    sending = dist.isend(tensor, peer)  # while it is sent, this rank receives\n"
RECV = "    dist.recv(theirs, peer)\n"
WAIT = "    sending.wait()  # until then the tensor must stay as it is\n"
MEAN = "    tensor += theirs\n    tensor /= 2\n"
IN_TURN = """    calls = [(dist.send, tensor), (dist.recv, theirs)]
    for call, one in calls if LOWER else reversed(calls):
        call(one, peer)
"""
IRECV = """    receiving = dist.irecv(theirs, peer)
    dist.send(tensor, peer)
    receiving.wait()
"""
GATHERED = """    each = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(each, tensor)
    theirs = each[peer]
"""
ALL = SEND + RECV + WAIT
RIGHT = {
    "the lower rank sends first": [(ALL, IN_TURN.replace("LOWER", "dist.get_rank() < peer"))],
    "irecv, then send": [(ALL, IRECV)],
    "a copy is sent": [("isend(tensor,", "isend(tensor.clone(),"), (WAIT + MEAN, MEAN + WAIT)],
}
WRONG = {
    "both receive first": ([(ALL, RECV + "    dist.send(tensor, peer)\n")], "it hangs"),
    "even ranks send first": (
        [(ALL, IN_TURN.replace("LOWER", "dist.get_rank() % 2 == 0"))],
        "On 3 ranks: it hangs",
    ),
    "changed while it is sent": ([(WAIT + MEAN, MEAN + WAIT)], "changes the tensor before"),
    "never waited for": ([(WAIT, "")], "does not wait"),
    "used before it is there": (
        [(ALL + MEAN, IRECV.replace("    receiving.wait()\n", MEAN + "    receiving.wait()\n"))],
        "the mean is",
    ),
    "by all ranks": ([(ALL, GATHERED)], "calls all"),
}

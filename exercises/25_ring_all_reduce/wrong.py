"""Wrong answers to exercise 25. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: all_reduce is yours to write


# %% each rank sends its tensor to all others
# verdict: bytes that a rank sends in its 2 (N - 1) chunks: 192; 128 with
def all_reduce(tensor):
    others = [other for other in range(dist.get_world_size()) if other != dist.get_rank()]
    mine = tensor.clone()
    sending = [dist.isend(mine, other) for other in others]
    for other in others:
        received = torch.empty_like(tensor)
        dist.recv(received, other)
        tensor += received
    for work in sending:
        work.wait()


# %% the all-reduce of PyTorch's group
# verdict: other calls than send, recv, isend, irecv yours: [allreduce]
def all_reduce(tensor):
    dist.group.WORLD.allreduce(tensor).wait()


# %% sums in float32
# verdict: the tensor on each rank
ours = all_reduce


def all_reduce(tensor):
    rounded = tensor.float()
    ours(rounded)
    tensor.copy_(rounded)

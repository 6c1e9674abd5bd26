"""Two unequal nodes, each with a GPU per process: each process gets one of its own."""

import os

import torch

WORLD_SIZES = (2, 4)
NODES = {2: (1, 1), 4: (1, 3)}  # the processes of each node, and its GPUs
HINTS = (
    "Write down, for each process of both nodes, which GPU it takes and which its node has.",
    "RANK counts all processes of a job, LOCAL_RANK those of a node, and each node numbers its "
    "GPUs from 0.",
    "torchrun also sets LOCAL_RANK, which counts the processes of each node from 0: take that.",
)


def observe(mine):
    rank, sizes = int(os.environ["RANK"]), NODES[int(os.environ["WORLD_SIZE"])]
    node = int(rank >= sizes[0])
    local_rank, gpus = rank - node * sizes[0], sizes[node]
    os.environ |= {"LOCAL_RANK": f"{local_rank}", "LOCAL_WORLD_SIZE": f"{gpus}"}
    os.environ |= {"GROUP_RANK": f"{node}", "GROUP_WORLD_SIZE": "2", "NODE_RANK": f"{node}"}
    current = [0]
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: gpus
    torch.cuda.set_device = lambda device: current.append(number(device))
    torch.cuda.current_device = lambda: current[-1]
    device = mine.device_of_this_rank()
    return repr(torch.device("cuda", current[-1]) if device == torch.device("cuda") else device)


def number(device):
    """cuda:1, torch.device("cuda:1") and 1 all mean GPU 1."""
    return device if isinstance(device, int) else torch.device(device).index or 0


def judge(ranks):
    owner = {}
    for number, takes in enumerate(ranks):
        node = int(number >= NODES[len(ranks)][0])
        gpus = range(NODES[len(ranks)][node])
        has = f"node {node}, which has {', '.join(f'cuda:{n}' for n in gpus)} and no other GPU"
        if takes not in [repr(torch.device("cuda", n)) for n in gpus]:
            return f"rank {number} runs on {has}; it takes {takes}"
        if (node, takes) in owner:
            return f"ranks {owner[node, takes]} and {number} take the same GPU, {takes}, of {has}"
        owner[node, takes] = number
    return None

"""Stage 5 from scratch: a ring all-reduce built from send and receive, and two other ways.

Every rank has a vector, and every rank needs the sum of all vectors. In a naive all-reduce rank 0
adds up all vectors, and its network is the bottleneck. In a ring of N ranks each vector is cut into
N chunks. In each step every rank sends one chunk to its right neighbour and receives another chunk
from its left neighbour. In the first N - 1 steps the ranks add what they receive (reduce-scatter).
Then each rank has one finished chunk. In the next N - 1 steps the ranks send the finished chunks
around the ring (all-gather). In total a rank sends 2(N - 1)/N vectors: 1 with two ranks, and almost
2 with many ranks.

    python 05_multinode/from_scratch.py
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tabulate import tabulate
from torch import Tensor


class Step(NamedTuple):
    phase: str  # "reduce-scatter": the received chunk is added; "all-gather": it replaces a chunk
    send: int  # number of the chunk that goes to the right neighbour
    receive: int  # number of the chunk that comes from the left neighbour


def schedule(rank: int, world_size: int) -> list[Step]:
    """Return the 2(N - 1) steps of a rank. Raises ValueError if there is no such rank.

    Source: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel Distrib. Comput. 69 (2009).
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} among {world_size}")
    steps = []
    for phase, first in (("reduce-scatter", rank), ("all-gather", rank + 1)):
        for i in range(world_size - 1):
            steps.append(Step(phase, (first - i) % world_size, (first - i - 1) % world_size))
    return steps


def chunks(length: int, world_size: int) -> list[slice]:
    """Cut `length` elements into world_size chunks. The first ones may be longer, by 1 element."""
    short, longer = divmod(length, world_size)
    starts = [i * short + min(i, longer) for i in range(world_size + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def simulate(vectors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Simulate the ring in one process. Yields all vectors, at the start and after each step.

    vectors: one per rank, [L]. Raises ValueError if there are none, or if their lengths differ.
    """
    if not vectors or any(len(vector) != len(vectors[0]) for vector in vectors):
        raise ValueError("the ring needs at least one vector, and all of one length")
    world_size = len(vectors)
    state = [vector.clone() for vector in vectors]
    cut = chunks(len(state[0]), world_size)
    yield [vector.clone() for vector in state]
    for steps in zip(*(schedule(rank, world_size) for rank in range(world_size))):
        sent = [state[rank][cut[step.send]].clone() for rank, step in enumerate(steps)]
        for rank, step in enumerate(steps):
            mine = state[rank][cut[step.receive]]
            received = sent[rank - 1]
            mine.copy_(mine + received if step.phase == "reduce-scatter" else received)
        yield [vector.clone() for vector in state]


def all_reduce(tensor: Tensor, way: str = "ring") -> int:
    """Sum a tensor over all ranks, in place -> how many elements this rank has sent.

    way: "ring", "naive" or "tree". All ranks must call this function with the same way, and with
    tensors of the same type and length (not 0). Otherwise every rank raises ValueError, before any
    element is sent.
    """
    check_agreement(tensor, way)
    flat = tensor.contiguous().view(-1)
    sent = WAYS[way](flat)
    if flat.data_ptr() != tensor.data_ptr():  # tensor was not contiguous, and flat is a copy
        tensor.copy_(flat.view_as(tensor))
    return sent


def ring(flat: Tensor) -> int:
    """Add up in a ring: reduce-scatter, then all-gather. flat: [L] -> elements sent."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    cut = chunks(len(flat), world_size)
    inbox = torch.empty_like(flat[cut[0]])
    sent = 0
    for phase, send, receive in schedule(rank, world_size):
        adds = phase == "reduce-scatter"
        mine = flat[cut[receive]]
        received = inbox[: len(mine)] if adds else mine
        exchange(flat[cut[send]], (rank + 1) % world_size, received, (rank - 1) % world_size)
        if adds:
            mine += received
        sent += len(flat[cut[send]])
    return sent


def exchange(outgoing: Tensor, right: int, incoming: Tensor, left: int) -> None:
    """Send and receive at the same time. If all ranks sent first, all would wait for a receiver."""
    calls = [(dist.irecv, incoming, left), (dist.isend, outgoing, right)]
    calls = [call for call in calls if len(call[1])]  # A chunk may be empty.
    if outgoing.is_cuda and calls:  # NCCL needs both operations in one call.
        works = dist.batch_isend_irecv([dist.P2POp(*call) for call in calls])
    else:
        works = [function(tensor, peer) for function, tensor, peer in calls]
    for work in works:
        work.wait()


def naive(flat: Tensor) -> int:
    """The naive way: rank 0 receives all vectors, and sends the sum to every rank."""
    if dist.get_rank() > 0:
        dist.send(flat, dst=0)
        dist.recv(flat, src=0)
        return len(flat)
    others = range(1, dist.get_world_size())
    received = torch.empty_like(flat)
    for rank in others:
        dist.recv(received, src=rank)
        flat += received
    for rank in others:
        dist.send(flat, dst=rank)
    return len(others) * len(flat)


def tree(flat: Tensor) -> int:
    """Add up along a tree with log2(N) levels, towards rank 0, and send the sum back."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    received = torch.empty_like(flat)
    sent = 0
    levels = [2**i for i in range(world_size.bit_length()) if 2**i < world_size]
    for distance in levels:  # Towards rank 0: in each pair, the larger rank sends.
        if rank % (2 * distance) == distance:
            dist.send(flat, dst=rank - distance)
            sent += len(flat)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.recv(received, src=rank + distance)
            flat += received
    for distance in reversed(levels):  # Down: the lower rank sends.
        if rank % (2 * distance) == distance:
            dist.recv(flat, src=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.send(flat, dst=rank + distance)
            sent += len(flat)
    return sent


WAYS = {"ring": ring, "naive": naive, "tree": tree}


def check_agreement(tensor: Tensor, way: str) -> None:
    """Raise ValueError on all ranks at once. If one rank failed alone, the others would wait."""
    own = (tensor.numel(), str(tensor.dtype), way)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    for rank, brought in enumerate(everyone):
        if brought != everyone[0]:
            raise ValueError(f"rank {rank} brings {brought}, rank 0 {everyone[0]}")
    if tensor.numel() == 0 or way not in WAYS:
        raise ValueError(f"{own}: the tensor needs an element, and way is one of {list(WAYS)}")


# ---------------------------------------------------------------- the proof

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64]
SIZES = {"116 KB": 29_034, "1 MiB": 2**18, "25 MiB": 25 * 2**18}  # float32 elements


def show_ring() -> None:
    print("The elements of rank 0 are 1, those of rank 1 are 10, and those of rank 2 are 100.")
    print("So 11 is the sum of ranks 0 and 1. The bars separate the three chunks of a vector:\n")
    vectors = [torch.full((6,), 10**rank) for rank in range(3)]
    cut = chunks(6, 3)
    names = ["start", *(step.phase for step in schedule(0, 3))]
    for name, state in zip(names, simulate(vectors)):
        rows = (" | ".join(f"{row[c][0].item():3}" for c in cut) for row in state)
        ranks = "     ".join(f"rank {rank}: {row}" for rank, row in enumerate(rows))
        print(f"   {name:16}{ranks}")


def prove(world_size: int) -> None:
    say(f"\n{world_size} rank(s):")
    torch.manual_seed(dist.get_rank())
    for way in WAYS:
        exact = True
        for length in (1, 2, 3, 7, 29_034):
            for dtype in DTYPES:
                ours = torch.randint(-50, 50, (length,)).to(dtype)  # sums of these are exact
                theirs = ours.clone()
                all_reduce(ours, way)
                dist.all_reduce(theirs)
                exact &= torch.equal(ours, theirs)
        claim(exact, f"{way}: the same sums as dist.all_reduce, for 5 lengths and 4 types")
        total = torch.tensor(all_reduce(torch.ones(1001), way))
        most = total.clone()
        dist.all_reduce(total)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        text = (
            f"    they send 2(N - 1) x 1001 = {total:,} elements in all, the busiest rank {most:,}"
        )
        claim(total == 2 * (world_size - 1) * 1001, text)


def measure(world_size: int) -> None:
    say(f"\nMilliseconds on {world_size} ranks (medians; on other hardware another way may win):")
    lines = []
    for name, length in SIZES.items():
        repeats = 8 if length > 2**20 else 40  # The times of short vectors vary more.
        seconds = times({"gloo": dist.all_reduce} | WAYS, length, repeats)
        row = [1000 * taken for taken in seconds.values()]
        lines.append([name, *row, seconds["ring"] / seconds["gloo"]])
    say(tabulate(lines, ["", "gloo", *WAYS, "ring / gloo"], tablefmt="plain", floatfmt=".2f"))


def times(ways: dict[str, Callable], length: int, repeats: int) -> dict[str, float]:
    """Measure all ways for a vector of float32, interleaved -> the median seconds of each way."""
    tensor = torch.zeros(length)
    seconds = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            dist.barrier()
            started = time.perf_counter()
            way(tensor)
            seconds[name].append(time.perf_counter() - started)
    # The first repeat of each way warms up and does not count.
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def run_rank(rank: int, folder: str) -> None:
    """Run one of four processes. They form groups of ranks: 0 alone, 0 and 1, 0 to 2, 0 to 3."""
    if not mp.parent_process().is_alive():
        sys.exit(1)  # The parent was killed while this rank was importing.
    torch.set_num_threads(1)
    for world_size in range(rank + 1, 5):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{world_size} ranks",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
        prove(world_size)
        if world_size in (2, 4):
            measure(world_size)
        dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def claim(held: bool, text: str) -> None:
    """If the claim holds, rank 0 prints it. If it fails on a rank, this rank ends all ranks."""
    if held:
        say(f"ok     {text}")
    else:
        print(f"FAILED {text} (rank {dist.get_rank()})", flush=True)
        sys.exit(1)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    show_ring()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder,), nprocs=4, daemon=True)  # they end with their parent


if __name__ == "__main__":
    main()

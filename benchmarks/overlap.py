"""Does the ring of 05_multinode/own_backend.py overlap with backward? DDP on links made slow.

Two ranks, three buckets; a message takes --latency milliseconds longer. "Sequential" backward waits
for each all-reduce before it goes on, as with a backend that has no thread. Both ways have
their turn in every round, and the ratio is formed within a round.

    python -m benchmarks.overlap
"""

import importlib
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from benchmarks import common

own = importlib.import_module("05_multinode.own_backend")
BUCKET_MB = 0.04  # three buckets of the ConvNet


class Switched(own.Ring):
    """The ring; with in_turn every all-reduce is waited for at once."""

    in_turn = False

    def allreduce(self, tensors, options):
        promise = super().allreduce(tensors, options)
        if self.in_turn:
            promise.wait()
        return promise


class SlowLink:
    """A socket on which each message takes some seconds longer."""

    def __init__(self, link, seconds: float):
        self.link, self.seconds, self.close = link, seconds, link.close

    def sendall(self, data) -> None:
        time.sleep(self.seconds)
        self.link.sendall(data)


def main() -> None:
    parser = common.flags(__doc__, batch_size=240, rounds=12)
    parser.add_argument("--latency", type=float, default=10, help="milliseconds a message (10)")
    args = common.parse(parser, batch_size=2, rounds=2, latency=0)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, args), nprocs=2)
        seconds = torch.load(f"{folder}/seconds")
    about = f"{args.latency:g} ms a message, {args.batch_size} images per step, {common.about()}"
    common.show(args, "overlap", {"about": about, "seconds": seconds}, report)


def run_rank(rank: int, folder: str, args) -> None:
    common.end_with_parent()
    torch.set_num_threads(1)
    dist.Backend.register_backend("switched", Switched, devices=["cpu"])
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("switched", store=store, rank=rank, world_size=2)
    ring = dist.group.WORLD
    ring.outgoing = SlowLink(ring.outgoing, args.latency / 1000)
    model = common.ddp(common.stage3.ConvNet(), bucket_cap_mb=BUCKET_MB)
    x, y = common.batch(args.batch_size // 2)
    ways = {"overlapped": partial(backward, model, x, y, False)}
    ways["sequential"] = partial(backward, model, x, y, True)
    for _ in range(3):
        backward(model, x, y, False)  # DDP makes its three buckets
    seconds = common.in_turns(args.rounds, ways)
    if rank == 0:
        torch.save(seconds, f"{folder}/seconds")
    dist.destroy_process_group()


def backward(model, x, y, in_turn: bool) -> float:
    """Seconds of one backward; the ranks begin it together."""
    loss = F.cross_entropy(model(x), y)
    dist.all_reduce(torch.ones(1))
    Switched.in_turn = in_turn
    started = time.perf_counter()
    loss.backward()
    seconds = time.perf_counter() - started
    Switched.in_turn = False
    return seconds


def report(results: dict) -> str:
    seconds, rows = results["seconds"], []
    for name, taken in seconds.items():
        ratios = [own / other for own, other in zip(taken, seconds["sequential"])]
        rows.append([name, common.deciles([1000 * t for t in taken]), common.deciles(ratios)])
    titles = ["all-reduces and backward", "ms of a backward", "of sequential"]
    return f"{results['about']}\n{common.table(titles, rows)}"


if __name__ == "__main__":
    main()

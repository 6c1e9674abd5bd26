"""How long a sum takes by ring, star and tree on four ranks, and by gloo's own all-reduce.

Twice: on one machine, where bytes travel through memory, and with hosts of their own (namespaces,
made by hosts.py), whose cables carry 100 Mb/s in either direction. The ways are those of
from_scratch.py and take turns. A sum has arrived when the last rank has it. Of each round's repeats
the median counts, of the rounds the quickest: whatever else a machine does makes a sum take longer,
never shorter. Then gloo on two ranks, likewise. The second half needs Linux and root.

    sudo env "PATH=$PATH" python notebooks/workers/05_ways.py --write notebooks/results/05_ways.json
"""

import argparse
import importlib
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
common = importlib.import_module("benchmarks.common")
from_scratch = importlib.import_module("05_multinode.from_scratch")
hosts = importlib.import_module("05_multinode.rehearsal.hosts")

BYTES = [2**10, 2**13, 2**16, 116_136, 2**18, 2**20, 2**22]  # 116,136: the ConvNet's
SHAPE = "root tbf rate 100mbit burst 16kb latency 400ms"  # tbf: a bucket with a hole
NET, PORT, ROUNDS = "ways", 29517, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="file for the result, as JSON")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return run_rank(args.rank, args.master)
    if reason := hosts.missing():
        print(f"05_ways.py: {reason}", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # take the hosts down
    result = {"about": f"{common.device_name()}, torch {torch.__version__}", "ranks": 4}
    result["one machine"] = ranks_of([start_here(rank) for rank in range(4)])
    with hosts.hosts_for_a_while(4, NET) as four, slow_cables(four):
        lines = {f"host{rank}": line(rank, "10.5.0.1") for rank in range(4)}
        ranks = [four.start(name, own, stdout=subprocess.PIPE) for name, own in lines.items()]
        result["cables of 100 Mb/s"] = ranks_of(ranks)
    print(json.dumps(result, indent=1))
    if args.write:
        common.write_json(args.write, result)


def line(rank: int, master: str) -> list[str]:
    return [sys.executable, __file__, "--rank", str(rank), "--master", master]


def start_here(rank: int) -> subprocess.Popen:
    return subprocess.Popen(line(rank, "127.0.0.1"), stdout=subprocess.PIPE)


def ranks_of(processes: list[subprocess.Popen]) -> dict:
    """Wait for four ranks -> what rank 0 has measured."""
    try:
        said = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return json.loads(said[0])


@contextmanager
def slow_cables(four):
    """100 Mb/s out of each host, and 100 Mb/s out of the switch to each; they go with the hosts."""
    for name in four.names():
        ends = [(f"{NET}-{name}", "eth0"), (four.switch, name)]
        for space, device in ends:
            command = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device]
            subprocess.run([*command, *SHAPE.split()], check=True, capture_output=True)
    yield


def run_rank(rank: int, master: str) -> None:
    """One of the four; rank 0 prints {"ways": {way: {bytes: ms}}, "two": {"gloo": {bytes: ms}}}."""
    torch.set_num_threads(1)
    store = dist.TCPStore(master, PORT, is_master=rank == 0, timeout=timedelta(seconds=60))
    found = {}
    for name, world_size, ways in (
        ("ways", 4, {"gloo": dist.all_reduce} | from_scratch.WAYS),
        ("two", 2, {"gloo": dist.all_reduce}),
    ):
        if rank < world_size:
            own = dist.PrefixStore(name, store)
            dist.init_process_group(
                "gloo",
                store=own,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=60),
            )
            found[name] = sweep(ways)
            dist.destroy_process_group()
    store.set(f"done {rank}", "")
    if rank == 0:  # it has the store: whoever still asks shall get an answer
        store.wait([f"done {other}" for other in range(4)])
        print(json.dumps(found))


def sweep(ways: dict) -> dict[str, dict[int, float]]:
    """-> {way: {bytes: milliseconds}}"""
    found = {way: {} for way in ways}
    for _ in range(ROUNDS):
        for size in BYTES:
            repeats = 20 if size < 2**17 else 5
            for way, seconds in times(ways, size // 4, repeats).items():
                known = found[way].get(size, float("inf"))
                found[way][size] = min(known, round(1000 * seconds, 4))
    return found


def times(ways: dict, length: int, repeats: int) -> dict[str, float]:
    """Median seconds until the last rank has the sum of vectors [length], in turn.

    A rank that has sent its last bytes is done when the system has taken them, long before a slow
    cable has carried them: so it is not enough to ask one rank.
    """
    tensor, seconds = torch.zeros(length), {way: [] for way in ways}
    for _ in range(repeats):
        for way, function in ways.items():
            dist.barrier()
            started = time.perf_counter()
            function(tensor)
            seconds[way].append(time.perf_counter() - started)
    found = {}
    for way, taken in seconds.items():
        last = torch.tensor(taken[1:], dtype=torch.float64)  # the first one warms up
        dist.all_reduce(last, dist.ReduceOp.MAX)
        found[way] = last.median().item()
    return found


if __name__ == "__main__":
    main()

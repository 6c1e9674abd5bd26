"""How long ring, naive and tree all-reduce take on four ranks, and gloo's own all-reduce.

Twice: on one machine, where bytes travel through memory, and on four nodes (namespaces, made by
05_multinode/rehearsal/hosts.py), whose cables carry 100 Mb/s in either direction. The ways are
those of 05_multinode/from_scratch.py, interleaved. A sum has arrived when the last rank has it.
The median of a round's repeats and the quickest round count. The second half needs Linux and root.

    sudo env "PATH=$PATH" python -m benchmarks.all_reduce_ways
"""

import importlib
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from tabulate import tabulate

from benchmarks import common
from lib import processes

from_scratch = importlib.import_module("05_multinode.from_scratch")
hosts = importlib.import_module("05_multinode.rehearsal.hosts")

RANKS = 4
BYTES = [2**10, 2**13, 2**16, 116_136, 2**18, 2**20, 2**22]  # 116,136: the ConvNet's
CABLE = "root tbf rate 100mbit burst 16kb latency 400ms"  # tbf: token bucket filter, a rate limit
NET = f"ways{os.getpid()}"
PATIENCE = 900  # seconds


def main() -> None:
    parser = common.flags(__doc__, rounds=2)
    args = common.parse(parser, rounds=1)
    if "RANK" in os.environ:
        return run_rank(args.rounds)
    if reason := hosts.missing():
        parser.error(reason)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or each torchrun prints that it does this
    processes.exit_on_signals()  # and take the nodes down
    found = {"about": common.about(), "ranks": RANKS, "one machine": on_this_machine(args.rounds)}
    found["cables of 100 Mb/s"] = on_slow_cables(args.rounds)
    common.show(args, "all_reduce_ways", found, report)


def report(found: dict) -> str:
    """A table per network, with a line per way."""
    parts = [f"milliseconds of an all-reduce by bytes, {RANKS} ranks, {found['about']}\n"]
    for net in list(found)[2:]:
        rows = [[way, *of_way.values()] for way, of_way in found[net]["ways"].items()]
        parts.append(f"{tabulate(rows, [net, *BYTES], floatfmt='.2f')} \n\n")
    return "".join(parts).removesuffix("\n")


def torchrun(rounds: int, *options: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    return [*command, "-m", "benchmarks.all_reduce_ways", "--rounds", str(rounds)]


def on_this_machine(rounds: int) -> dict:
    command = torchrun(rounds, "--standalone", f"--nproc-per-node={RANKS}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=common.ROOT) as process:
        return result_of([process])


def on_slow_cables(rounds: int) -> dict:
    """Rank 0 to 3 on nodes of their own: 100 Mb/s out of each, and out of the switch to each."""
    with hosts.hosts_for_a_while(RANKS, NET) as nodes:
        for name in nodes.names():
            for space, device in ((f"{NET}-{name}", "eth0"), (nodes.switch, name)):
                command = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device]
                subprocess.run([*command, *CABLE.split()], check=True, capture_output=True)
        processes = []
        for rank, name in enumerate(nodes.names()):
            place = ["--nnodes=4", f"--node-rank={rank}", "--nproc-per-node=1"]
            command = torchrun(rounds, *place, "--master-addr=host0", "--master-port=29517")
            processes.append(nodes.start(name, command, stdout=subprocess.PIPE, cwd=common.ROOT))
        return result_of(processes)


def result_of(processes: list[subprocess.Popen]) -> dict:
    """Wait for the ranks -> what rank 0 has printed. Raises RuntimeError if one has failed."""
    try:
        printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.terminate()  # torchrun then ends its ranks
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank has failed: its own lines stand above")
    return json.loads(printed[0])


def run_rank(rounds: int) -> None:
    """One of the four; rank 0 prints {"ways": {way: {bytes: ms}}}."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {"ways": sweep({"gloo": dist.all_reduce} | from_scratch.WAYS, rounds)}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def sweep(ways: dict, rounds: int) -> dict:
    """-> {way: {bytes: milliseconds}}"""
    found = {way: dict.fromkeys(BYTES, float("inf")) for way in ways}
    for _ in range(rounds):
        for size in BYTES:
            repeats = 20 if size < 2**17 else 5
            for way, seconds in times(ways, size // 4, repeats).items():
                found[way][size] = min(found[way][size], round(1000 * seconds, 4))
    return found


def times(ways: dict, length: int, repeats: int) -> dict[str, float]:
    """Median seconds until the last rank has the sum of vectors [length], one after the other.

    A rank that has sent its last bytes is done when the system has taken them, long before a slow
    cable has carried them: so it is not enough to ask one rank.
    """
    tensor = torch.zeros(length)
    seconds = {way: [] for way in ways}
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

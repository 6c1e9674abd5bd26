r"""Before the job: do the nodes agree, and is an all-reduce between them right and fast?

Start it on every node with the job's own torchrun line, in place of train.py:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 05_multinode/rehearsal/preflight.py

Rank 0 prints a line for each check. Exit code: 0 if all pass, 1 if one has failed, 2 for bad input.
To measure a network of GPUs in detail, run nccl-tests (github.com/NVIDIA/nccl-tests).
"""

import argparse
import importlib
import json
import os
import platform
import socket
import sys
import zlib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

if __name__ == "__main__":  # our lines name the fault; PyTorch would add pages of C++ frames
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
hosts = importlib.import_module("05_multinode.rehearsal.hosts")

NEEDED = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
TO_DO = {  # if a check has failed
    "store": "open all ports between the nodes; the endpoint's name must lead to the first node",
    "nodes": "see what the other nodes print; if they are only slow, give a longer --timeout",
    "versions": "install the same versions on all nodes and give all ranks the same --device",
    "data": "copy MNIST/raw from the node where it is right",
    "own name": "in DNS or in every /etc/hosts, give the name the address that the others use",
    "all-reduce": "open all ports between the nodes; `ping -M do -s 1372 NODE` tests the MTU",
}


def main() -> None:
    """Each rank comes to the same findings, and rank 0 prints them."""
    args = parse_args()
    endpoint = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=args.timeout)))
        with socket.create_connection(endpoint, args.timeout) as connection:
            address = connection.getsockname()[0]  # this node's, on the way to the first node
        ranks = gather(store, "ranks", look_at_node(args, address), args.timeout)
        failed = compare(ranks)
        if not failed:
            failed = judge(gather(store, "results", measure(args), 3 * args.timeout), ranks)
        with suppress(RuntimeError):  # rank 0 may hold the store: it waits for the others
            gather(store, "end", failed, 5)
    except (OSError, RuntimeError) as error:  # PyTorch's errors are RuntimeErrors
        reason = str(error).partition("\n")[0]
        failed = report("store", f"{endpoint} from {socket.gethostname()}: {reason}", True)
    if os.environ["RANK"] == "0":
        print("preflight: FAILED" if failed else "preflight: all checks pass", flush=True)
    os._exit(1 if failed else 0)  # sys.exit could wait for a process group that has failed


def report(check: str, found: str, failed: bool = False) -> bool:
    """Print what a check has found, on rank 0; return whether it has failed."""
    lines = [*found.splitlines(), f"to do: {TO_DO[check]}"] if failed else found.splitlines()
    if os.environ["RANK"] == "0" or check == "store":
        print(f"{'FAILED' if failed else 'ok':8}{check:12}" + f"\n{'':20}".join(lines), flush=True)
    return failed


def look_at_node(args: argparse.Namespace, address: str) -> dict:
    """Return what the others must know of this node: {check: what was found}."""
    host, crc, own = socket.gethostname(), 0, set()
    for file in sorted(Path(args.data, "MNIST/raw").glob("*-ubyte")):
        crc = zlib.crc32(file.read_bytes(), crc)
    with suppress(OSError):  # the name is unknown
        own = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    # gloo publishes the address to which the node's name leads, unless it is told an interface
    needed = args.device == "cpu" and "GLOO_SOCKET_IFNAME" not in os.environ
    wrong = "" if address in own or not needed else f", but others reach it at {address}"
    return {
        "node": f"{host} ({address})",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, {args.device}",
        "data": f"crc32 {crc:08x}" if crc else f"no MNIST in {args.data}",
        "own name": f"{host} is {' '.join(sorted(own)) or 'unknown'}{wrong}",
    }


def gather(store: dist.Store, key: str, value, seconds: float) -> dict:
    """Publish a value, as all ranks do; return {rank: value} of those that did so in time."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keys = [f"{key}/{attempt}/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    store.set(keys[int(os.environ["RANK"])], json.dumps(value))
    with suppress(dist.DistStoreError):  # not all came in time
        store.wait(keys, timedelta(seconds=seconds))
    return {rank: json.loads(store.get(key)) for rank, key in enumerate(keys) if store.check([key])}


def compare(ranks: dict[int, dict]) -> bool:
    """Report what the nodes have in common and what not; return whether a check has failed."""
    nodes = {found["node"]: found for found in ranks.values()}
    text = f"{len(ranks)} of {os.environ['WORLD_SIZE']} ranks answer, on {', '.join(nodes)}"
    failed = report("nodes", text, len(ranks) < int(os.environ["WORLD_SIZE"]))
    for check in ("versions", "data", "own name"):
        texts = {node: found[check] for node, found in nodes.items()}
        same = len(set(texts.values())) == 1
        wrong = not same
        if check == "own name":  # on one machine the address of the loopback works
            wrong = len(nodes) > 1 and any("others reach it" in text for text in texts.values())
        lines = [f"{node}: {text}" for node, text in texts.items()]
        failed |= report(check, min(texts.values()) if same else "\n".join(lines), wrong)
    return failed


def measure(args: argparse.Namespace) -> dict:
    """Join the process group -> an "error" as the backend words it, or milliseconds."""
    torch.set_num_threads(1)
    on_gpu = args.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    backend, limit = "nccl" if on_gpu else "gloo", timedelta(seconds=args.timeout)
    try:
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=limit, device_id=device if on_gpu else None)
        terms = torch.arange(25 * 2**20 // 4, device=device, dtype=torch.float32) % 7 + 1
        vector = terms * (dist.get_rank() + 1)  # whole numbers: float32 adds them exactly
        dist.all_reduce(vector)
        wrong = int((vector != terms * sum(range(dist.get_world_size() + 1))).sum())
        number = torch.zeros(1, device=device)
        matrix = torch.eye(4096 if on_gpu else 512, device=device)
        return {
            "error": f"{wrong} wrong numbers" if wrong else "",
            "small": milliseconds(lambda: dist.all_reduce(number), 30),
            "large": milliseconds(lambda: dist.all_reduce(terms), 5),
            "product": milliseconds(lambda: matrix @ matrix, 10),
        }
    except Exception as error:  # whatever stops gloo or NCCL is what the reader wants to see
        return {"error": str(error).strip().partition("\n")[0][:200] or type(error).__name__}


def judge(results: dict[int, dict], ranks: dict[int, dict]) -> bool:
    """Report what the ranks have measured, or what has stopped them; return whether it failed."""
    errors = {rank: results.get(rank, {"error": "no answer"})["error"] for rank in ranks}
    if any(errors.values()):
        lines = [f"{ranks[rank]['node']}, rank {rank}: {error}" for rank, error in errors.items()]
        return report("all-reduce", "\n".join(lines), True)
    small, large = results[0]["small"], results[0]["large"]
    report("all-reduce", f"right; {small:.2f} ms for 1 number, {large:.1f} ms for 25 MiB")
    products = {rank: result["product"] for rank, result in results.items()}
    slow, fastest = max(products, key=products.get), min(products.values())
    text = f"rank {slow} on {ranks[slow]['node']} is the slowest: {products[slow]:.1f} ms"
    return report("speed", f"{text} for a matrix product, the fastest {fastest:.1f} ms")


def milliseconds(action, runs: int) -> float:
    """Return the mean time of a run. Timer warms up, and waits for a GPU."""
    return 1000 * Timer("action()", globals={"action": action}).timeit(runs).mean


def parse_args() -> argparse.Namespace:
    parser = hosts.Parser(description=(__doc__ or "").partition("\n")[0])
    data = os.environ.get("MNIST_ROOT", "data")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--data", type=Path, default=data, help="MNIST's folder ($MNIST_ROOT or data)")
    add("--device", choices=("cpu", "cuda"), default=device, help="what ranks run on")
    add("--timeout", type=int, default=30, help="seconds that ranks wait (30)")
    args = parser.parse_args()
    if not 1 <= args.timeout <= 600:
        parser.error(f"--timeout {args.timeout}: from 1 to 600")
    if missing := [name for name in NEEDED if name not in os.environ]:
        hosts.fail(f"start it with torchrun: {', '.join(missing)} not set")
    return args


if __name__ == "__main__":
    main()

r"""Before the job: is every node ready, and is an all-reduce between the nodes right and fast?

Start it on every node with the job's own torchrun line, in place of train.py:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 05_multinode/rehearsal/preflight.py

The ranks exchange what they find through torchrun's store, and rank 0 prints one table. Every wait
is bounded by --timeout. Exit code: 0 if all is sound, 1 if a check has failed, 2 for bad input.
"""

import argparse
import json
import os
import platform
import signal
import socket
import sys
import time
import zlib
from collections import namedtuple
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from tabulate import tabulate

if __name__ == "__main__":  # the table names the fault; PyTorch would add pages of C++ frames
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

AGREE = {  # what is the same on the nodes of a sound job, and what to do if it is not
    "versions": "install the same versions on all nodes",
    "device": "the same --device on all nodes, cpu or cuda",
    "data": "copy MNIST/raw from the node where it is right",
}
FIX_NAME = "in DNS or in every /etc/hosts, give the name the address that the other nodes use"
FIX_PORTS = "open all ports between the nodes in the firewall; see `ip route`"
FIX_ALL_REDUCE = (
    "suspect the node without an answer, or with wrong numbers: cable, card, memory; and the MTU: "
    "`ping -M do -s 1372 NODE` shows whether packets of 1400 bytes pass"
)


# status: ok, note or FAILED
Finding = namedtuple("Finding", "status check found to_do", defaults=[""])


class Unreachable(Exception):
    """Its two arguments: what does not answer, and what to do about it."""


def main() -> None:
    """Each rank comes to the same findings; rank 0 prints them."""
    args = parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends us at once, without a traceback
    try:
        store, address = open_store(args.timeout)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.create_server((address, 0), family=family)  # the others try it
        node = look_at_node(args, address) | {"port": server.getsockname()[1]}
        code = print_table(check_ranks(args, store, node), show=os.environ["RANK"] == "0")
        with suppress(Unreachable):  # the store is gone when rank 0 has ended: wait for all
            gather(store, "end", code, 5)
    except Unreachable as problem:
        code = 1
        if os.environ["LOCAL_RANK"] == "0":
            print_table([Finding("FAILED", "store", *problem.args)])
        else:
            time.sleep(2)  # when one rank ends, torchrun ends all: let the first one print
    sys.stdout.flush()
    os._exit(code)  # sys.exit would wait for threads that may hang


def check_ranks(args: argparse.Namespace, store: dist.Store, node: dict) -> list[Finding]:
    """Raises Unreachable if torchrun's store does not answer."""
    of_rank = gather(store, "node", node, args.timeout)
    nodes = dict.fromkeys(node["label"] for node in of_rank.values())
    missing = [str(r) for r in range(int(os.environ["WORLD_SIZE"])) if r not in of_rank]
    found = f"{len(of_rank)} rank(s) on {', '.join(nodes)}"
    findings = [Finding("ok", "nodes", found), *compare(of_rank.values())]
    if missing:
        to_do = "see what the others print; if they are only slow, give a larger --timeout"
        found = f"only {found}; nothing from rank {', '.join(missing)} in time"
        findings[0] = Finding("FAILED", "nodes", found, to_do)
    findings.append(check_paths(args, store, node, of_rank))
    if ("FAILED", "device") not in {finding[:2] for finding in findings}:  # NCCL might hang
        findings.append(check_all_reduce(args, store, of_rank))
    return [*findings, check_speed(of_rank)]


# --------------------------------------------------------------------- what a node knows of itself


def look_at_node(args: argparse.Namespace, address: str) -> dict:
    """-> what the others have to know: "checks" is {check: [what was found, to do or empty]}"""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NCCL {nccl}"
    ranks, gpus, to_do = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count(), ""
    if args.device == "cuda" and gpus < ranks:
        to_do = f"{gpus} GPU(s) for {ranks} ranks: a smaller --nproc-per-node"
    checks = {
        "versions": (versions, ""),
        "device": (args.device, to_do),
        "own name": look_at_name(args, address),
        "data": (look_at_data(args.data / "MNIST" / "raw"), ""),
    }
    label = f"{socket.gethostname()} ({address})"
    product = time_product(args.device)
    return {"label": label, "address": address, "checks": checks, "product": product}


def look_at_name(args: argparse.Namespace, address: str) -> tuple[str, str]:
    """Does this node's name lead to the address from which it reaches the others? gloo takes it."""
    host, interface = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    if args.device == "cuda" or interface:
        return f"not needed: {interface or 'NCCL asks the interfaces'}", ""
    own = resolve(host, args.timeout)
    found = f"{host} is {' '.join(own)}" if own else f"{host} does not resolve"
    if address in own:
        return found, ""
    return f"{found}, the others reach it at {address}", FIX_NAME


def look_at_data(raw: Path) -> str:
    crc, files = 0, sorted(raw.glob("*-ubyte"))
    for file in files:
        crc = zlib.crc32(file.read_bytes(), crc)
    return f"crc32 {crc:08x}" if len(files) == 4 else f"{len(files)} of 4 files in {raw}"


def compare(nodes: Iterable[dict]) -> list[Finding]:
    """-> a finding per check of look_at_node"""
    nodes, findings = {node["label"]: node["checks"] for node in nodes}, []
    for check in next(iter(nodes.values())):
        found = {label: checks[check][0] for label, checks in nodes.items()}
        to_do = "\n".join({checks[check][1] for checks in nodes.values()} - {""})
        alike = len(set(found.values())) == 1
        if check == "own name" and len(nodes) == 1:
            to_do = ""  # on one machine a loopback will do
        elif check in AGREE and not alike:
            to_do = to_do or AGREE[check]
        lines = [f"{label}: {text}" for label, text in found.items()]
        text = next(iter(found.values())) if alike else "\n".join(lines)
        findings.append(Finding("FAILED" if to_do else "ok", check, text, to_do))
    return findings


# --------------------------------------------------------------------- the store and the paths


def within(seconds: float, action: Callable, *arguments):
    """-> action(*arguments). Raises TimeoutError if it takes longer; its thread ends with us."""
    future = ThreadPoolExecutor(1).submit(action, *arguments)
    wait([future], seconds)
    if not future.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()


def open_store(seconds: float) -> tuple[dist.Store, str]:
    """-> torchrun's store, and our address on the way to it. Raises Unreachable."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    addresses = resolve(host, seconds)
    if not addresses:
        raise Unreachable(f"the name {host} does not resolve", FIX_NAME)
    try:
        opened = dist.rendezvous("env://", timeout=timedelta(seconds=seconds))
        store, _, _ = within(seconds, next, opened)
        with socket.create_connection((addresses[0], port), seconds) as connection:
            return store, connection.getsockname()[0]
    except (OSError, RuntimeError) as error:  # PyTorch's are RuntimeErrors
        reason = str(error).partition("\n")[0]
        raise Unreachable(f"{host}:{port}: {reason}", FIX_PORTS) from None


def resolve(name: str, seconds: float) -> list[str]:
    """-> the addresses of a name, as seen from here; none if it does not resolve in time"""
    with suppress(OSError, UnicodeError):
        entries = within(seconds, socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM)
        return list(dict.fromkeys(entry[4][0] for entry in entries))
    return []


def gather(store: dist.Store, key: str, value: object, seconds: float) -> dict[int, object]:
    """Publish a value, as all ranks do -> {rank: value} of those that did so in time"""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keys = [f"{key}/{attempt}/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]

    def exchange():
        store.set(keys[int(os.environ["RANK"])], json.dumps(value))
        with suppress(dist.DistStoreError):  # not all came in time
            store.wait(keys, timedelta(seconds=seconds))
        there = [rank for rank, key in enumerate(keys) if store.check([key])]
        return {rank: json.loads(store.get(keys[rank])) for rank in there}

    try:
        return within(seconds + 5, exchange)
    except (RuntimeError, TimeoutError):
        to_do = "see what rank 0 prints, and what its node's torchrun prints"
        raise Unreachable("torchrun's store no longer answers", to_do) from None


def check_paths(args: argparse.Namespace, store: dist.Store, node: dict, of_rank: dict) -> Finding:
    """The first rank of each node connects to all other nodes."""
    own, problems = node["label"], []
    nodes = {node["label"]: node for node in of_rank.values() if node["label"] != own}

    def try_path(node):
        try:
            socket.create_connection((node["address"], node["port"]), args.timeout / 3).close()
        except OSError as error:
            problems.append(f"{own} -> {node['label']}: {error.strerror or error}")

    with ThreadPoolExecutor(32) as pool:
        if os.environ["LOCAL_RANK"] == "0":
            pool.map(try_path, nodes.values())
    problems_of = gather(store, "paths", problems, args.timeout)
    unknown = {r: [f"{n['label']}: no result from rank {r} in time"] for r, n in of_rank.items()}
    found = "\n".join(sum((unknown | problems_of).values(), []))
    if found:
        return Finding("FAILED", "paths", found, FIX_PORTS)
    return Finding("ok", "paths", "every node reaches every other one")


# --------------------------------------------------------------------- what the ranks measure


def time_product(kind: str) -> float:
    """-> milliseconds of a matrix product, with one thread"""
    torch.set_num_threads(1)
    matrix = torch.eye(4096 if kind == "cuda" else 512, device=rank_device(kind))
    return milliseconds(lambda: matrix @ matrix, 10)


def milliseconds(action: Callable, runs: int) -> float:
    """-> mean of a run; Timer warms up, and waits for a GPU"""
    return 1000 * Timer("action()", globals={"action": action}).timeit(runs).mean


def rank_device(kind: str) -> torch.device:
    """With an index, as PyTorch asks for. Ranks share GPUs if there are too few: a finding."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def check_all_reduce(args: argparse.Namespace, store: dist.Store, of_rank: dict) -> Finding:
    try:
        result = within(args.timeout, all_reduce, args)
    except Exception as error:  # whatever stops gloo or NCCL is what the reader wants to see
        result = {"error": str(error).strip().partition("\n")[0][:200] or type(error).__name__}
    results, faults = gather(store, "all-reduce", result, args.timeout + 3), []
    for rank, node in of_rank.items():
        error = results.get(rank, {"error": "no answer in time"})["error"]
        if error:
            faults.append(f"{node['label']}, rank {rank}: {error}")
    if faults:
        return Finding("FAILED", "all-reduce", "\n".join(faults), FIX_ALL_REDUCE)
    small, large = results[0]["small"], results[0]["large"]
    found = f"correct; 1 number {small:.2f} ms, 25 MiB {large:.1f} ms"
    return Finding("ok", "all-reduce", found)


def all_reduce(args: argparse.Namespace) -> dict:
    """Add up vectors of which every rank knows the sum, then measure.

    -> {"error": empty if all is right, "small", "large": milliseconds}"""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = rank_device(args.device)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        # gloo's own error says more than ours and shall come first; NCCL's would abort the process
        timeout=timedelta(seconds=600 if on_gpu else 0.8 * args.timeout),
        device_id=device if on_gpu else None,
    )
    terms = torch.arange(25 * 2**20 // 4, device=device, dtype=torch.float32) % 7 + 1
    vector = terms * (rank + 1)  # whole numbers below 2**24: float32 adds them exactly
    dist.all_reduce(vector)
    wrong = int((vector != terms * (world_size * (world_size + 1) // 2)).sum())
    number, zeros = torch.zeros(1, device=device), torch.zeros_like(vector)
    return {
        "error": f"{wrong} wrong numbers" if wrong else "",
        "small": milliseconds(lambda: dist.all_reduce(number), 30),
        "large": milliseconds(lambda: dist.all_reduce(zeros), 5),
    }


def check_speed(of_rank: dict[int, dict]) -> Finding:
    order = sorted(of_rank, key=lambda rank: of_rank[rank]["product"])
    fast, slow = order[0], order[-1]
    least, most = of_rank[fast]["product"], of_rank[slow]["product"]
    found = f"a matrix product takes rank {fast} {least:.1f} ms, and the slowest, "
    found += f"rank {slow} on {of_rank[slow]['label']}, {most:.1f} ms"
    status = "note" if most > 1.5 * least else "ok"
    return Finding(status, "speed", found, "all wait for it in every step: see `top` there")


# --------------------------------------------------------------------- output and input


def print_table(findings: list[Finding], show: bool = True) -> int:
    """-> exit code"""
    rows = []
    for finding in findings:
        rows.append([finding.status, finding.check, finding.found])
        if finding.status != "ok" and finding.to_do:
            rows.append(["", "to do", finding.to_do])
    failed = [finding.check for finding in findings if finding.status == "FAILED"]
    if show:
        print(tabulate(rows, tablefmt="plain", disable_numparse=True))
        print(f"preflight: FAILED: {', '.join(failed)}" if failed else "preflight: all sound")
    return int(bool(failed))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.error = stop
    data = os.environ.get("MNIST_ROOT", "data")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--data", type=Path, default=data, help="MNIST's folder ($MNIST_ROOT or data)")
    add("--device", choices=("cpu", "cuda"), default=device, help="what ranks run on")
    add("--timeout", type=float, default=10, help="seconds that a wait may take, 1 to 600 (10)")
    args = parser.parse_args()
    if not 1 <= args.timeout <= 600:
        stop(f"--timeout {args.timeout}: from 1 to 600 seconds")
    if args.device == "cuda" and not torch.cuda.is_available():
        stop("--device cuda: PyTorch sees no CUDA device")
    if "RANK" not in os.environ:
        stop("start it with torchrun, as the job")
    return args


def stop(message: str) -> None:
    """Bad input: one line and exit code 2."""
    print(f"preflight: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()

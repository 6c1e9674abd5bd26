r"""Before the job: is every node ready, and do large payloads pass between the nodes?

Start it on every node with the job's own torchrun line, in place of train.py:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 05_multinode/rehearsal/preflight.py

The ranks exchange what they find through torchrun's store, and rank 0 prints one table. The
all-reduce comes last: gloo or NCCL may be what is broken. Every wait is bounded by --timeout.
Exit code: 0 if all is sound, 1 if a check has failed, 2 for bad input (torchrun makes 1 of it).
"""

import argparse
import ipaddress
import json
import os
import platform
import signal
import socket
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import psutil
from tabulate import tabulate

if __name__ == "__main__":  # the table names the fault; PyTorch would add pages of C++ frames
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import torch
import torch.distributed as dist

MIB = 2**20
STATUS = ("ok", "note", "FAILED")  # from good to bad
NEEDED = ("nodes", "device", "GPUs", "address", "paths")  # else an all-reduce would hang or fail
AGREE = {  # what is the same on the nodes of a sound job: status and remedy if it is not
    "versions": ("FAILED", "install the same versions on all nodes"),
    "ranks": ("FAILED", "the same --nproc-per-node on all nodes"),
    "device": ("FAILED", "the same --device on all nodes, cpu or cuda"),
    "GPUs": ("note", "in every step all ranks wait for the slowest"),
    "data": ("FAILED", "copy MNIST/raw from the node where it is right"),
}
FIX_NAME = "in DNS or in every /etc/hosts, give the name the address that the other nodes use"
FIX_PORTS = (
    "does it run there? then open all ports between the nodes in the firewall; see `ip route`"
)
FIX_MTU = (
    "`ping -M do -s 1372 NODE` shows whether packets of 1400 bytes pass; compare `ip link` on the "
    "nodes, and set the smallest MTU everywhere: `ip link set dev INTERFACE mtu 1400`"
)
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


class Finding(NamedTuple):
    status: str  # one of STATUS
    check: str
    found: str
    to_do: str = ""


class Unreachable(Exception):
    """Its two arguments: what does not answer, and what to do about it."""


def main() -> None:
    """Each rank comes to the same findings; rank 0 prints them."""
    args = parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends us at once, without a traceback
    node = look_at_node(args) | {"product": time_product(args.device)}
    family = socket.AF_INET6 if ":" in node["address"] else socket.AF_INET
    listener = socket.create_server((node["address"], 0), family=family).detach()
    server = dist.TCPStore(  # the other nodes try to reach it
        node["address"], 0, is_master=True, wait_for_workers=False, master_listen_fd=listener
    )
    node["port"] = server.port
    try:
        store = open_job_store(min(5, args.timeout))
        code = print_table(check_ranks(args, store, node), show=os.environ["RANK"] == "0")
        with suppress(Unreachable):  # the store is gone when rank 0 has ended: wait for all
            gather(store, "end", code, 5)
    except Unreachable as problem:
        code = 1
        if os.environ["LOCAL_RANK"] == "0":
            print_table([*compare([node]), Finding("FAILED", "store", *problem.args)])
        else:
            time.sleep(2)  # when one rank ends, torchrun ends all: let the first one print
    sys.stdout.flush()
    os._exit(code)  # sys.exit would wait for threads that may hang


def check_ranks(args: argparse.Namespace, store: dist.Store, node: dict) -> list[Finding]:
    """Raises Unreachable if torchrun's store does not answer."""
    of_rank = gather(store, "node", node, args.timeout)
    nodes = dict.fromkeys(node["label"] for node in of_rank.values())
    missing = [str(r) for r in range(int(os.environ["WORLD_SIZE"])) if r not in of_rank]
    status, found = "ok", f"{len(of_rank)} rank(s) on {', '.join(nodes)}"
    if missing:
        status, found = "FAILED", f"only {found}; nothing from rank {', '.join(missing)} in time"
    to_do = "see what the others print; if they are only slow, give a larger --timeout"
    findings = [Finding(status, "nodes", found, to_do), *compare(of_rank.values())]
    if not broken(findings):
        findings.append(check_paths(args, store, node, of_rank))
    if not broken(findings):
        findings.append(check_all_reduce(args, store, of_rank))
    else:
        why = f"not tried, it would hang or fail: {', '.join(broken(findings))}"
        findings.append(Finding("note", "all-reduce", why))
    return [*findings, check_speed(of_rank)]


def broken(findings: list[Finding]) -> list[str]:
    return [f.check for f in findings if f.status == "FAILED" and f.check in NEEDED]


# --------------------------------------------------------------------- what a node knows of itself


def look_at_node(args: argparse.Namespace) -> dict:
    """-> {"label", "address": where others try it, "findings": {check: [status, found, to do]}}"""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NCCL {nccl}"
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    address, finding = look_at_address(args)
    findings = {
        "versions": ("ok", versions, ""),
        "ranks": ("ok", f"{ranks} per node", ""),
        "device": ("ok", args.device, ""),
        "address": finding,
        "data": look_at_data(args.data / "MNIST" / "raw"),
    }
    if args.device == "cuda":
        findings["GPUs"] = look_at_gpus(ranks)
    return {
        "label": f"{socket.gethostname()} ({address})",
        "address": address,
        "findings": findings,
    }


def look_at_address(args: argparse.Namespace) -> tuple[str, tuple[str, str, str]]:
    """-> the address at which the others try this node, and whether they can: the finding

    It is that of the interface that gloo or NCCL is told to use, else that of the node's name.
    """
    families, host = (socket.AF_INET, socket.AF_INET6), socket.gethostname()
    there = {
        name: [a.address for a in entries if a.family in families and "%" not in a.address]
        for name, entries in psutil.net_if_addrs().items()  # without those of one link only
    }
    variable = "NCCL_SOCKET_IFNAME" if args.device == "cuda" else "GLOO_SOCKET_IFNAME"
    interface = os.environ.get(variable, "")
    if interface and interface[0] not in "^=":  # these are NCCL's own rules
        own, found = there.get(interface, []), f"{variable}={interface}"
    else:
        with suppress(socket.gaierror):
            own = resolve(host, args.timeout)
        own = own if "own" in locals() else []
        found = f"{host} is {' '.join(own)}" if own else f"{host} does not resolve"
    everywhere = sum(there.values(), [])
    usable = [a for a in own if a in everywhere and not ipaddress.ip_address(a).is_loopback]
    if usable:
        return usable[0], ("ok", found, "")
    real = [a for a in everywhere if not ipaddress.ip_address(a).is_loopback]
    found += ", which no other node can reach" if own else ", and no interface here has that"
    return (*real, "127.0.0.1")[0], ("FAILED", found, f"{FIX_NAME}: {', '.join(real) or 'none'}")


def look_at_gpus(ranks: int) -> tuple[str, str, str]:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    to_do = "each rank needs a GPU: a smaller --nproc-per-node, or see CUDA_VISIBLE_DEVICES"
    status = "FAILED" if len(names) < ranks else "ok"
    return status, f"{len(names)}: {', '.join(sorted(set(names)))}", to_do


def look_at_data(raw: Path) -> tuple[str, str, str]:
    crc = 0
    try:
        for name in FILES:
            crc = zlib.crc32((raw / f"{name}-ubyte").read_bytes(), crc)
    except OSError as error:
        return "note", f"{error.filename}: {error.strerror}", "train.py will download MNIST"
    return "ok", f"crc32 {crc:08x}", ""


def compare(nodes: Iterable[dict]) -> list[Finding]:
    """-> a finding per check of look_at_node"""
    nodes, findings = {node["label"]: node["findings"] for node in nodes}, []
    for check in next(iter(nodes.values())):
        seen = {label: found[check] for label, found in nodes.items() if check in found}
        status = max((status for status, _, _ in seen.values()), key=STATUS.index)
        to_do = "\n".join(dict.fromkeys(to_do for _, _, to_do in seen.values() if to_do))
        if check == "address" and len(nodes) == 1 and status == "FAILED":
            status = "note"  # on one machine a loopback will do
        sound = {found for status, found, _ in seen.values() if status == "ok"}
        if status != "FAILED" and len(sound) > 1 and check in AGREE:
            status, to_do = AGREE[check]
        labels = {}
        for label, (_, text, _) in seen.items():
            labels.setdefault(text, []).append(label)
        lines = [f"{', '.join(labels[text])}: {text}" for text in labels]
        found = "\n".join(lines) if len(labels) > 1 else next(iter(labels))
        findings.append(Finding(status, check, found, to_do))
    return findings


# --------------------------------------------------------------------- the store and the paths


def within(seconds: float, action: Callable, *arguments):
    """-> action(*arguments). Raises TimeoutError if it takes longer; its thread ends with us."""
    future = ThreadPoolExecutor(1).submit(action, *arguments)
    wait([future], seconds)
    if not future.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()


def open_job_store(seconds: float) -> dist.Store:
    """-> a connection to the store at MASTER_ADDR. Raises Unreachable, with the reason."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # then rank 0 has to serve it
        if os.environ["RANK"] == "0":
            return dist.TCPStore(host, port, is_master=True, wait_for_workers=False)
        with suppress(RuntimeError, TimeoutError):  # it tries again until rank 0 does
            within(seconds, connect, host, port)
    return reach_store(host, port, seconds)


def connect(host: str, port: int) -> dist.TCPStore:
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False)


def reach_store(name: str, port: int, seconds: float) -> dist.TCPStore:
    """-> a connection to a store that has sent a large payload back. Raises Unreachable.

    An open connection proves little: where the MTU is wrong, small packets still pass.
    """
    where = f"{name}:{port}"
    try:
        address = resolve(name, seconds)[0]
        where += f" ({address})"
        socket.create_connection((address, port), seconds).close()  # its errors give a reason
        store = within(seconds, connect, address, port)
    except socket.gaierror:
        raise Unreachable(f"the name {name} does not resolve", FIX_NAME) from None
    except OSError as error:
        raise Unreachable(f"{where}: {error.strerror or error}", FIX_PORTS) from None
    try:
        within(seconds, send_and_fetch, store)
    except (RuntimeError, TimeoutError):
        found = f"{where}: small packets pass, large ones do not: MTU"
        raise Unreachable(found, FIX_MTU) from None
    return store


def resolve(name: str, seconds: float) -> list[str]:
    """-> the addresses of a name, as seen from here. Raises socket.gaierror without any."""
    try:
        entries = within(seconds, socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM)
    except (UnicodeError, TimeoutError) as error:
        raise socket.gaierror from error
    return list(dict.fromkeys(entry[4][0] for entry in entries))


def send_and_fetch(store: dist.Store) -> None:
    """A payload of one large packet, and 1 MiB: virtual networks let that pass whatever the MTU."""
    key = f"preflight {os.urandom(8).hex()}"
    for size in (1380, MIB):
        payload = os.urandom(size)
        store.set(key, payload)
        if store.get(key) != payload:
            raise RuntimeError("the payload has changed")
    store.delete_key(key)


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
    except (RuntimeError, TimeoutError):  # PyTorch's errors are RuntimeErrors
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        to_do = "see what rank 0 prints, and what its node's torchrun prints"
        raise Unreachable(f"torchrun's store at {where} does not answer", to_do) from None


def check_paths(args: argparse.Namespace, store: dist.Store, node: dict, of_rank: dict) -> Finding:
    """The first rank of each node sends a payload to all other nodes."""
    own, problems = node["label"], {}
    nodes = {node["label"]: node for node in of_rank.values()}

    def try_path(label):
        node, seconds = nodes[label], min(3, args.timeout / 3)
        try:
            reach_store(node["address"], node["port"], seconds)
        except Unreachable as problem:
            problems[f"{own} -> {label}: {problem.args[0]}"] = problem.args[1]

    with ThreadPoolExecutor(32) as pool:
        if os.environ["LOCAL_RANK"] == "0":
            pool.map(try_path, [label for label in nodes if label != own])
    problems_of = gather(store, "paths", problems, args.timeout)
    problems = {}
    for rank, node in of_rank.items():
        unknown = {f"{node['label']}: no result from rank {rank} in time": FIX_PORTS}
        problems |= problems_of.get(rank, unknown)
    if problems:
        to_do = "\n".join(dict.fromkeys(problems.values()))
        return Finding("FAILED", "paths", "\n".join(problems), to_do)
    return Finding("ok", "paths", "1 MiB passes from every node to every other one, and back")


# --------------------------------------------------------------------- what the ranks measure


def time_product(kind: str) -> float:
    """-> median milliseconds of a matrix product, with one thread"""
    torch.set_num_threads(1)
    matrix = torch.eye(4096 if kind == "cuda" else 512, device=rank_device(kind))
    return 1000 * median_seconds(lambda: matrix @ matrix, 10)


def rank_device(kind: str) -> torch.device:
    """Ranks share GPUs if there are too few: the check of the GPUs reports that."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def median_seconds(action: Callable, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU runs behind the program that feeds it
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


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
        to_do = "suspect the node without an answer, or with wrong numbers: cable, card, memory"
        return Finding("FAILED", "all-reduce", "\n".join(faults), to_do)
    small, large = results[0]["small"], results[0]["large"]
    found = f"correct; medians: 1 number {small:.2f} ms, 25 MiB {large:.1f} ms"
    return Finding("ok", "all-reduce", found)


def all_reduce(args: argparse.Namespace) -> dict:
    """Add up vectors of which every rank knows the sum, then measure.

    -> {"error": empty if all is right, "small", "large": median milliseconds}"""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = rank_device(args.device)
    on_gpu = device.type == "cuda"
    # A connection of its own: if the group hangs, the other one has to stay usable.
    store = connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore(f"group/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store),
        rank=rank,
        world_size=world_size,
        # gloo's own error says more than ours and shall come first; NCCL's would abort the process
        timeout=timedelta(seconds=600 if on_gpu else 0.8 * args.timeout),
        device_id=device if on_gpu else None,
    )
    terms = torch.arange(25 * MIB // 4, device=device, dtype=torch.float32) % 7 + 1
    vector = terms * (rank + 1)  # whole numbers below 2**24: float32 adds them exactly
    dist.all_reduce(vector)
    wrong = int((vector != terms * (world_size * (world_size + 1) // 2)).sum())
    number, zeros = torch.zeros(1, device=device), torch.zeros_like(vector)
    return {
        "error": f"{wrong} wrong numbers" if wrong else "",
        "small": 1000 * median_seconds(lambda: dist.all_reduce(number), 30),
        "large": 1000 * median_seconds(lambda: dist.all_reduce(zeros), 5),
    }


def check_speed(of_rank: dict[int, dict]) -> Finding:
    product = {rank: node["product"] for rank, node in of_rank.items()}
    fast, slow = min(product, key=product.get), max(product, key=product.get)
    found = f"a matrix product takes rank {fast} {product[fast]:.1f} ms, and the slowest, "
    found += f"rank {slow} on {of_rank[slow]['label']}, {product[slow]:.1f} ms"
    status = "note" if product[slow] > 1.5 * product[fast] else "ok"
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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

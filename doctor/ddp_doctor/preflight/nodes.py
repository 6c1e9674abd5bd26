"""Before the job: do the nodes agree, and is an all-reduce between them right and fast?

Each rank publishes what it finds in the store of torchrun, and reads what the others have found.
So all come to the same conclusions without a process group, and rank 0 prints them. Only then do
they join a group, and add numbers whose sum is known.
"""

import json
import os
import platform
import re
import socket
import tempfile
import zlib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

LARGE = 25 * 2**20  # bytes of an all-reduce
HUGE = 256 * 2**20
TO_DO = {  # if a check has failed
    "store": "open all ports between the nodes; the endpoint's name must lead to the first node",
    "nodes": "see what the other nodes print; if they are only slow, give a longer --timeout",
    "versions": "install the same versions on all nodes and give all ranks the same --device",
    "data": "copy the folder from the node where it is right",
    "own name": "in DNS or in every /etc/hosts, give the name the address that the others use",
    "bandwidth": "see which interface and transport is used; measure with nccl-tests",
    "all-reduce": "open all ports between the nodes; `ping -M do -s 1372 NODE` tests the MTU",
}


def main(args):
    """Each rank comes to the same findings, and rank 0 prints them."""
    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    endpoint = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        failed = has_failed(args, endpoint)
    except (OSError, RuntimeError) as error:  # PyTorch's errors are RuntimeErrors
        reason = str(error).partition("\n")[0]
        failed = report("store", f"{endpoint} from {socket.gethostname()}: {reason}", True)
    if os.environ["RANK"] == "0":
        print("preflight: FAILED" if failed else "preflight: all checks pass", flush=True)
    os._exit(1 if failed else 0)  # sys.exit could wait for a process group that has failed


def has_failed(args, endpoint):
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=args.timeout)))
    with socket.create_connection(endpoint, args.timeout) as connection:
        address = connection.getsockname()[0]  # this node's, on the way to the first node
    ranks = gather(store, "ranks", look_at_node(args, address), args.timeout)
    failed = compare(ranks)
    if not failed:
        results = gather(store, "results", measure(args), 3 * args.timeout)
        failed = judge(results, ranks, args.min_busbw)
    with suppress(RuntimeError):  # rank 0 may hold the store: it waits for the others
        gather(store, "end", failed, 5)
    return failed


def report(check, found, failed=False):
    """Print what a check has found, on rank 0; return whether it has failed."""
    lines = found.splitlines()
    if failed:
        lines.append(f"to do: {TO_DO[check]}")
    if os.environ["RANK"] == "0" or check == "store":
        text = f"\n{'':20}".join(lines)
        print(f"{'FAILED' if failed else 'ok':8}{check:12}{text}", flush=True)
    return failed


# ------------------------------------------------------------------ do the nodes agree?


def look_at_node(args, address):
    """Return what the others must know of this node: {check: what was found}."""
    host = socket.gethostname()
    own = set()
    with suppress(OSError):  # the name is unknown
        for entry in socket.getaddrinfo(host, None):
            own.add(entry[4][0])
    # gloo publishes the address to which the node's name leads, unless it is told an interface
    needed = args.device == "cpu" and "GLOO_SOCKET_IFNAME" not in os.environ
    wrong = needed and address not in own
    name = f"{host} is {' '.join(sorted(own)) or 'unknown'}"
    return {
        "node": f"{host} ({address})",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, {args.device}",
        "data": look_at_data(args.data),
        "own name": f"{name}, but others reach it at {address}" if wrong else name,
    }


def look_at_data(folder):
    """One number of all files in a folder: of their names and contents."""
    if folder is None:
        return "not compared: --data FOLDER names it"
    checksum = 0
    count = 0
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        checksum = zlib.crc32(str(file.relative_to(folder)).encode(), checksum)
        with open(file, "rb") as stream:
            while block := stream.read(2**24):
                checksum = zlib.crc32(block, checksum)
        count += 1
    return f"{count} files, crc32 {checksum:08x}" if count else f"no files in {folder}"


def gather(store, key, value, seconds):
    """Publish a value, as all ranks do; return {rank: value} of those that did so in time."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    world = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    keys = [f"{key}/{attempt}/{number}" for number in range(world)]
    store.set(keys[rank], json.dumps(value))
    with suppress(dist.DistStoreError):  # not all came in time
        store.wait(keys, timedelta(seconds=seconds))
    values = {}
    for number, own in enumerate(keys):
        if store.check([own]):
            text = store.get(own)
            values[number] = json.loads(text)
    return values


def compare(ranks):
    """Report what the nodes have in common and what not; return whether a check has failed."""
    nodes = {found["node"]: found for found in ranks.values()}
    world = int(os.environ["WORLD_SIZE"])
    names = ", ".join(nodes)
    text = f"{len(ranks)} of {world} ranks answer, on {names}"
    failed = report("nodes", text, len(ranks) < world)
    for check in ("versions", "data", "own name"):
        texts = {node: found[check] for node, found in nodes.items()}
        same = len(set(texts.values())) == 1
        wrong = not same
        if check == "own name":  # on one machine the address of the loopback works
            differs = any("others reach it" in text for text in texts.values())
            wrong = differs and len(nodes) > 1
        if same:
            found = min(texts.values())
        else:
            found = "\n".join(f"{node}: {text}" for node, text in texts.items())
        failed |= report(check, found, wrong)
    return failed


# ------------------------------------------------------------------ is the network right and fast?


def measure(args):
    """Join the process group -> an "error" as the backend words it, or milliseconds."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        try:
            return measurements(args, Path(folder))
        except Exception as error:  # whatever stops gloo or NCCL is what the reader wants to see
            reason, _, _ = str(error).strip().partition("\n")
            return {"error": reason[:200] or type(error).__name__}


def measurements(args, folder):
    """Join the process group and measure, with NCCL's log in `folder` -> the results."""
    if args.device == "cuda":
        log_transport(folder)
    device = join(args)
    large = torch.arange(LARGE // 4, device=device, dtype=torch.float32) % 7 + 1
    total = large * (dist.get_rank() + 1)  # whole numbers: float32 adds them exactly
    dist.all_reduce(total)
    ranks = range(1, dist.get_world_size() + 1)
    wrong = int((total != large * sum(ranks)).sum())
    small = torch.zeros(1, device=device)
    huge = torch.ones(HUGE // 4, device=device)
    side = 4096 if args.device == "cuda" else 512
    matrix = torch.eye(side, device=device)
    return {
        "error": f"{wrong} wrong numbers" if wrong else "",
        "small": milliseconds(lambda: dist.all_reduce(small), 30),
        "large": milliseconds(lambda: dist.all_reduce(large), 5),
        "huge": milliseconds(lambda: dist.all_reduce(huge), 3),
        "transport": transport_of(folder) if args.device == "cuda" else "gloo over TCP",
        "product": milliseconds(lambda: matrix @ matrix, 10),
    }


def join(args):
    limit = timedelta(seconds=args.timeout)
    if args.device == "cpu":
        dist.init_process_group("gloo", timeout=limit)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=limit, device_id=device)
    return device


def log_transport(folder):
    """Let NCCL write into `folder` what it connects by, unless the user reads NCCL's log.

    According to the source of NCCL 2.30 (not run here), NCCL_DEBUG=INFO prints for each connection
    a line such as "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM" or "... [send] via NET/IB/0".
    """
    if "NCCL_DEBUG" not in os.environ:
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_FILE"] = str(folder / "nccl.%h.%p")


def transport_of(folder):
    """-> what the lines in NCCL's log say, once there are connections."""
    files = list(folder.iterdir())
    if not files:
        return "see the lines of NCCL_DEBUG"
    found = set()
    for file in files:
        text = file.read_text(errors="replace")
        found.update(re.findall(r" via ([A-Z0-9]+/\w+)", text))
    return " ".join(sorted(found)) or "unknown"


def busbw(size, seconds, ranks):
    """Bus bandwidth in GB/s of an all-reduce of `size` bytes.

    Source: nccl-tests, doc/PERFORMANCE.md: each rank sends and receives 2 (n - 1) / n of the data.
    """
    sent = 2 * (ranks - 1) / ranks * size
    return sent / seconds / 1e9


def judge(results, ranks, least=None):
    """Report what the ranks have measured, or what has stopped them; return whether it failed.

    least: the least bus bandwidth, in GB/s, of the all-reduce of 256 MiB.
    """
    errors = {}
    for rank in ranks:
        errors[rank] = results[rank]["error"] if rank in results else "no answer"
    if any(errors.values()):
        lines = [f"{ranks[rank]['node']}, rank {rank}: {error}" for rank, error in errors.items()]
        return report("all-reduce", "\n".join(lines), True)
    first = results[0]
    times = f"{first['small']:.2f} ms for 1 number, {first['large']:.1f} ms for 25 MiB"
    report("all-reduce", f"right; {times}")
    slow = judge_bandwidth(results, least) if len(results) > 1 else False
    products = {rank: result["product"] for rank, result in results.items()}
    slowest = max(products, key=products.get)
    node = ranks[slowest]["node"]
    text = f"rank {slowest} on {node} is the slowest: {products[slowest]:.1f} ms"
    fastest = min(products.values())
    report("speed", f"{text} for a matrix product, the fastest {fastest:.1f} ms")
    return slow


def judge_bandwidth(results, least):
    """Report the bus bandwidth and what the ranks are connected by -> is it too low?"""
    first = results[0]
    count = len(results)
    large = busbw(LARGE, first["large"] / 1000, count)
    huge = busbw(HUGE, first["huge"] / 1000, count)
    transports = {result["transport"] for result in results.values()}
    names = ", ".join(sorted(transports))
    text = f"busbw {large:.2f} GB/s for 25 MiB, {huge:.2f} GB/s for 256 MiB; {names}"
    too_low = least is not None and huge < least
    if too_low:
        text += f"; below {least:g} GB/s"
    return report("bandwidth", text, too_low)


def milliseconds(action, runs):
    """Return the mean time of a run. Timer warms up, and waits for a GPU."""
    timer = Timer("action()", globals={"action": action})
    return 1000 * timer.timeit(runs).mean

r"""Before the job: is every host ready for it, and do the hosts reach each other?

With the job's own line on every host, this script in the place of train.py:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
        --rdzv-endpoint host0:29500 05_multinode/rehearsal/preflight.py

Where the torchruns do not even find each other: leave the one on the endpoint's host waiting, and
see from the other hosts, without torchrun,

    python 05_multinode/rehearsal/preflight.py --endpoint host0:29500

Every host collects facts about itself; rank 0 judges them all and prints one table. The facts
travel through torchrun's store. gloo and NCCL may be what is broken: they are tried last, in a
thread that may hang. Exit code: 0 if all is sound, 1 if a check has failed, 2 for bad input
(torchrun makes 1 of it).
"""

import argparse
import ipaddress
import json
import math
import os
import platform
import queue
import re
import secrets
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
    import resource
except ImportError:  # Windows has neither: what they tell is left out there
    fcntl = resource = None

if __name__ == "__main__":
    if "RANK" in os.environ:  # a rank: Ctrl-C just ends it, torchrun tells the reader
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # We name the faults ourselves; PyTorch reports each one with a page of C++ frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import torch
import torch.distributed as dist

MIB = 2**20
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
MNIST = 0xE6625E56  # crc32 of these files, one after the other
STATUS = ("ok", "note", "FAILED")  # the worse the later
GIVE_A_NAME = "in DNS or every /etc/hosts, give it the address that the other hosts see"


class Check(NamedTuple):
    status: str  # one of STATUS
    name: str
    found: str
    to_do: str = ""


class Unreached(Exception):
    """Who could not be reached and why, in one line."""


def main() -> None:
    args = parse()
    if "RANK" in os.environ:
        code = together(args)
    else:
        hosts = {socket.gethostname(): look_around(args)}
        checks = judge(hosts, several=True)
        if args.endpoint:
            checks.append(check_endpoint(*args.endpoint, args.timeout))
        code = tell(args, checks, hosts)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: it would wait for a thread that hangs


# ------------------------------------------------------------------------- what a rank does


def together(args: argparse.Namespace) -> int:
    """-> exit code, the same on all ranks that still hear of each other"""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = {"rank": rank, "group": os.environ["GROUP_RANK"], "host": socket.gethostname()}
    own["speed"] = speed(args.device)
    if speaks := os.environ["LOCAL_RANK"] == "0":  # one rank looks at the host, for all of its own
        own |= look_around(args) | open_door()
    try:
        board = Board(min(5, args.timeout))
        board.put("facts", own)
        facts = board.read("facts", range(ranks), args.timeout)
        if speaks and len(facts) == ranks:
            board.put("links", knock_at_all(facts, rank, min(3, args.timeout)))
        return lead(args, board, facts) if rank == 0 else follow(args, board)
    except Unreached as reason:
        hosts = {own["host"]: own}
        found = f"{own['host']} does not hear it: {reason}"
        to_do = "see what it prints; end torchrun here, and try the job's endpoint with --endpoint"
        lost = Check("FAILED", "rank 0", found, to_do)
        return tell(args, [*judge(hosts, several=True), lost], hosts) if speaks else 1


def lead(args: argparse.Namespace, board: "Board", facts: dict[int, dict]) -> int:
    """Rank 0: judge the facts, let all ranks try an all-reduce if that can work, tell."""
    hosts, ranks = by_host(facts), int(os.environ["WORLD_SIZE"])
    machines = {json.dumps([fact["host"], fact["interfaces"]]) for fact in hosts.values()}
    several = len(machines) > 1 or len(facts) < ranks
    checks = [check_presence(facts, hosts, ranks, args.timeout), *judge(hosts, several)]
    if len(facts) == ranks and len(hosts) > 1:
        speakers = [fact["rank"] for fact in hosts.values()]
        checks += check_links(board.read("links", speakers, args.timeout), hosts)
    failed = [check.name for check in checks if check.status == "FAILED"]
    needed = {"hosts", "devices", "own name", "gloo", "NCCL", "connections"}
    hopeless = [name for name in failed if name in needed]
    board.put("go", not hopeless)
    alive, started = set(facts), time.monotonic()
    if hopeless:
        why = f"not tried, for it would hang or fail: {', '.join(hopeless)}"
        checks.append(Check("note", "all-reduce", why))
    else:
        board.put("sums", try_all_reduce(args))
        left = args.timeout + 3 - (time.monotonic() - started)  # we all began together
        sums = board.read("sums", range(ranks), left)
        alive = set(sums)
        checks.append(check_sums(sums, facts, args.timeout))
    code = tell(args, [*checks, check_speed(facts)], hosts)
    with suppress(Unreached):
        board.put("verdict", code)
        board.read("bye", alive - {0}, args.timeout)  # the store may go when we go
    return code


def follow(args: argparse.Namespace, board: "Board") -> int:
    """Every other rank: try what rank 0 says, and end as it says."""
    if board.read("go", [0], 2 * args.timeout).get(0):
        board.put("sums", try_all_reduce(args))
    verdict = board.read("verdict", [0], args.timeout + 3)
    if not verdict:
        raise Unreached("it has not said how to go on")
    with suppress(Unreached):
        board.put("bye", True)
    return verdict[0]


class Board:
    """torchrun's store as a notice board. No call waits longer than it says, whatever is broken.

    Raises Unreached if the store does not answer.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # then somebody listens by now
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            reach(address, port, seconds).close()  # it tells a reason; TCPStore would just wait
        self.store = self.bounded(lambda: open_store("preflight"))

    def put(self, word: str, value: object) -> None:
        key = f"{word}/{os.environ['RANK']}"
        self.bounded(lambda: self.store.set(key, json.dumps(value)))

    def read(self, word: str, ranks: Iterable[int], seconds: float) -> dict[int, object]:
        """-> {rank: what it has put under this word}, of those that have done so in time"""
        found, missing, patience = {}, set(ranks), time.monotonic() + seconds

        def look():
            for rank in sorted(missing):
                if self.store.check([f"{word}/{rank}"]):
                    found[rank] = json.loads(self.store.get(f"{word}/{rank}"))
                    missing.remove(rank)

        while missing and time.monotonic() < patience:
            self.bounded(look)
            time.sleep(0.02)
        return dict(sorted(found.items()))

    def bounded(self, action: Callable):
        try:
            return bounded(action, self.seconds)
        except (RuntimeError, TimeoutError):  # PyTorch's errors are RuntimeErrors
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise Unreached(f"torchrun's store at {where} does not answer") from None


def open_store(word: str) -> dist.Store:
    """A connection of its own to the store; if torchrun does not hold one, rank 0 does."""
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serve = not held and os.environ["RANK"] == "0" and word == "preflight"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=serve, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # each begins with an empty board
    return dist.PrefixStore(f"{word}/{attempt}", store)


def bounded(action: Callable, seconds: float):
    """-> action(). Raises TimeoutError if it takes longer; its thread then ends with us."""
    box = queue.SimpleQueue()

    def run():
        try:
            box.put((action(), None))
        except Exception as error:
            box.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = box.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error:
        raise error
    return result


def resolve(name: str, seconds: float) -> list[str]:
    """-> the addresses of a name, as seen from here. Raises Unreached without any."""
    try:
        ask = partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(entry[4][0] for entry in bounded(ask, seconds)))
    except (OSError, UnicodeError, TimeoutError):
        raise Unreached(f"the name {name} does not resolve") from None


def reach(name: str, port: int, seconds: float) -> socket.socket:
    """-> a TCP connection. Raises Unreached, with the reason."""
    address = resolve(name, seconds)[0]
    where = f"{name}:{port}" + f" ({address})" * (address != name)
    try:
        return socket.create_connection((address, port), seconds)
    except ConnectionRefusedError:
        raise Unreached(f"nobody listens at {where}") from None
    except TimeoutError:
        raise Unreached(f"no answer from {where} within {seconds:g} s") from None
    except OSError as error:
        raise Unreached(f"no way to {where}: {error.strerror}") from None


def open_door() -> dict:
    """Let the other hosts knock at a port of ours -> {"door": the port, "sign": what we answer}"""
    both = socket.has_dualstack_ipv6()  # IPv4 through an IPv6 socket, too
    family = socket.AF_INET6 if both else socket.AF_INET
    door = socket.create_server(("", 0), family=family, backlog=512, dualstack_ipv6=both)
    sign = secrets.token_hex(8)

    def answer():
        while True:
            guest, _ = door.accept()
            with guest, suppress(OSError):
                guest.sendall(sign.encode())

    threading.Thread(target=answer, daemon=True).start()
    return {"door": door.getsockname()[1], "sign": sign}


def knock_at_all(facts: dict[int, dict], rank: int, seconds: float) -> dict[str, list[str]]:
    """-> {other host: [what is wrong with its address, with its name]}, as seen from here"""
    others = {host: fact for host, fact in by_host(facts).items() if fact["rank"] != rank}
    with ThreadPoolExecutor(32) as pool:
        return dict(zip(others, pool.map(partial(knock, seconds=seconds), others.values())))


def knock(fact: dict, seconds: float) -> list[str]:
    wrong = []
    for name in (fact["announces"], fact["full_name"]):
        try:
            with reach(name or "", fact["door"], seconds) as caller:
                known = caller.recv(64).decode(errors="replace") == fact["sign"]
                wrong.append("" if known else f"somebody else answers at {name}")
        except OSError:
            wrong.append(f"{name} takes the call and says nothing")
        except Unreached as reason:
            wrong.append(str(reason) if name else "it has no address to be called at")
    return wrong


def try_all_reduce(args: argparse.Namespace) -> dict:
    """-> {"small", "large": median seconds, "wrong": numbers} or {"error": in one line}"""
    try:
        return bounded(lambda: all_reduce(args), args.timeout)
    except TimeoutError:
        return {"error": f"no end within {args.timeout:g} s"}
    except Exception as error:  # whatever gloo or NCCL stumble over is what we want to hear
        return {"error": str(error).strip().partition("\n")[0][:200] or type(error).__name__}


def all_reduce(args: argparse.Namespace) -> dict:
    """Add up vectors of which every rank knows the sum."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, found = rank_device(args.device), {"wrong": 0}
    on_gpu = device.type == "cuda"
    # gloo's own error says more than ours, so it shall come first; NCCL would abort the process.
    patience = timedelta(seconds=600 if on_gpu else 0.8 * args.timeout)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=open_store("group"),  # if it hangs, the board's own connection still works
        rank=rank,
        world_size=ranks,
        timeout=patience,
        device_id=device if on_gpu else None,
    )
    for name, numbers, times in (("small", 1, 30), ("large", 25 * MIB // 4, 5)):
        share = torch.arange(numbers, device=device, dtype=torch.float32) % 7 + 1
        seconds = []
        for _ in range(times):
            vector = share * (rank + 1)  # whole numbers below 2**24: float32 adds them exactly
            started = now(device)
            dist.all_reduce(vector)
            seconds.append(now(device) - started)
            found["wrong"] += int((vector != share * (ranks * (ranks + 1) // 2)).sum())
        found[name] = statistics.median(seconds)
    return found


def speed(kind: str) -> float:
    """-> median milliseconds of a matrix product on this rank's device, all ranks at it at once"""
    torch.set_num_threads(1)
    device, seconds = rank_device(kind), []
    size = 4096 if device.type == "cuda" else 512
    matrix = torch.eye(size, device=device)
    for _ in range(10):
        started = now(device)
        matrix = matrix @ matrix
        seconds.append(now(device) - started)
    return 1000 * statistics.median(seconds)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a GPU runs behind the program that feeds it
    return time.perf_counter()


def rank_device(kind: str) -> torch.device:
    """The CPU for a rank that finds no GPU of its own: the check of devices tells that."""
    local_rank = int(os.environ["LOCAL_RANK"])
    has_gpu = kind == "cuda" and local_rank < torch.cuda.device_count()
    return torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")


# --------------------------------------------------------------- what a host knows of itself


def look_around(args: argparse.Namespace) -> dict:
    """-> the facts of this host, ready for JSON"""
    gpus = range(torch.cuda.device_count() if args.device == "cuda" else 0)
    driver, shm = Path("/proc/driver/nvidia/version"), Path("/dev/shm")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none"
    gloo = "there" if dist.is_gloo_available() else "none"
    python = platform.python_version()
    fact = {
        "host": socket.gethostname(),
        "versions": f"torch {torch.__version__}, Python {python}, NCCL {nccl}, gloo {gloo}",
        "ranks": int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        "device": args.device,
        "gpus": [torch.cuda.get_device_name(i) for i in gpus],
        "driver": re.findall(r"\d+\.\d[\d.]*", driver.read_text())[0] if driver.exists() else "?",
        "shm": shutil.disk_usage(shm).free if shm.exists() else None,
        "files": resource and resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked": resource and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "rdma": Path("/dev/infiniband").exists(),
        "interfaces": interfaces(),
        "data": data_facts(args.data),
        "own": [],
        "full_name": socket.gethostname(),
    }
    with suppress(Unreached, TimeoutError):
        fact["own"] = resolve(fact["host"], args.timeout)
        fact["full_name"] = bounded(socket.getfqdn, args.timeout)  # torchrun announces rank 0 by it
    fact["usable"] = next(filter(is_own, fact["own"]), None)  # gloo announces this one
    for library in ("gloo", "NCCL"):
        fact[library] = network_facts(library, fact)
    return fact | {"announces": fact["NCCL" if args.device == "cuda" else "gloo"]["address"]}


def interfaces() -> dict[str, list[str]]:
    """-> {interface: its addresses}; empty elsewhere than on Linux"""
    if sys.platform != "linux":
        return {}
    found = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in found:
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))
                found[name].append(socket.inet_ntoa(answer[20:24]))  # 0x8915: SIOCGIFADDR
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        address, _, _, scope, _, name = line.split()
        if scope != "20":  # those are for one cable only
            found.setdefault(name, []).append(str(ipaddress.ip_address(bytes.fromhex(address))))
    return found


def network_facts(library: str, fact: dict) -> dict:
    """-> the interface and the address that gloo or NCCL will take"""
    there = {name: addresses for name, addresses in fact["interfaces"].items() if addresses}
    setting = os.environ.get(f"{library.upper()}_SOCKET_IFNAME", "")
    if not setting and library == "gloo":
        return {"setting": "", "interface": "by its name", "address": fact["usable"]}
    names = setting.split(",") if library == "gloo" else nccl_takes(setting, there)
    address = there[names[0]][0] if names and set(names) <= set(there) else None
    return {"setting": setting, "interface": names[0] if names else "", "address": address}


def nccl_takes(setting: str, there: Iterable[str]) -> list[str]:
    """The rules of NCCL_SOCKET_IFNAME: beginnings of names; ^ all but those; = whole names."""
    for rule in [setting] if setting else ["ib", "^docker,lo,virbr", "docker", "lo", "virbr"]:
        words = rule.lstrip("^=").split(",")
        match = str.__eq__ if "=" in rule else str.startswith
        wanted = "^" not in rule
        if taken := [n for n in there if any(match(n, word) for word in words) == wanted]:
            return taken
    return []


def is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
        return True
    except OSError:
        return False


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def data_facts(folder: Path) -> dict:
    """-> {"crc": of the four files, None without any, "found": in words, "sound": they look it}"""
    crc, raw = 0, folder / "MNIST" / "raw"
    if not raw.exists():
        return {"crc": None, "found": f"nothing at {raw}", "sound": True}
    for path in (raw / f"{part}-ubyte" for part in FILES):
        try:
            content = path.read_bytes()
            shape = struct.unpack_from(f">{content[3]}I", content, 4)
            if len(content) != 4 + 4 * len(shape) + math.prod(shape):
                raise ValueError
        except OSError as error:
            return {"crc": None, "found": f"{path}: {error.strerror}", "sound": False}
        except (ValueError, IndexError, struct.error):
            return {"crc": None, "found": f"{path} is damaged: its length is wrong", "sound": False}
        crc = zlib.crc32(content, crc)
    name = "MNIST" if crc == MNIST else "not MNIST itself"
    return {"crc": crc, "found": f"{name}, crc32 {crc:08x}", "sound": True}


# ----------------------------------------------------------------------- judging the facts


def judge(hosts: dict[str, dict], several: bool) -> list[Check]:
    """hosts: {name: facts}; several: they are on more than one machine, so no loopback will do"""
    alike = "install the same on all hosts"
    checks = [
        same("versions", hosts, lambda fact: fact["versions"], alike),
        same("ranks", hosts, lambda fact: f"{fact['ranks']} per host", "same --nproc-per-node"),
        check_devices(hosts),
        each("shared memory", hosts, look_at_shm),
        each("limits", hosts, look_at_limits),
        each("own name", hosts, partial(look_at_name, several=several)),
    ]
    for library in ("gloo", "NCCL"):  # gloo goes by the name unless its variable is set
        on_gpu = library == "NCCL" and any(fact["device"] == "cuda" for fact in hosts.values())
        if on_gpu or any(fact[library]["setting"] for fact in hosts.values()):
            look = partial(look_at_network, library=library, several=several)
            checks.append(each(library, hosts, look))
    return [*checks, check_data(hosts)]


def by_host(facts: dict[int, dict]) -> dict[str, dict]:
    """-> {host: facts}; two torchruns on one machine are told apart by their numbers"""
    speakers = [fact for fact in facts.values() if "interfaces" in fact]
    twice = len({fact["host"] for fact in speakers}) < len(speakers)
    return {fact["host"] + f"#{fact['group']}" * twice: fact for fact in speakers}


def each(name: str, hosts: dict[str, dict], look: Callable) -> Check:
    """One check for all hosts. look: facts of one -> (status, what was found, what to do)"""
    seen = {host: look(fact) for host, fact in hosts.items()}
    worst = max((status for status, _, _ in seen.values()), key=STATUS.index)
    to_do = [to_do for status, _, to_do in seen.values() if status == worst]
    found = told({host: found for host, (_, found, _) in seen.items()})
    return Check(worst, name, found, "; ".join(dict.fromkeys(to_do)))


def same(name: str, hosts: dict[str, dict], value: Callable, to_do: str) -> Check:
    values = {host: value(fact) for host, fact in hosts.items()}
    status = "ok" if len(set(values.values())) == 1 else "FAILED"
    return Check(status, name, told(values), to_do)


def told(values: dict[str, str]) -> str:
    """-> "x" if all hosts have the same to tell, else "host0, host2: x; host1: y" """
    hosts = {value: [h for h in values if values[h] == value] for value in values.values()}
    if len(hosts) == 1:
        return next(iter(hosts))
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in hosts.items())


def check_devices(hosts: dict[str, dict]) -> Check:
    check = each("devices", hosts, look_at_devices)
    if len({fact["device"] for fact in hosts.values()}) > 1:
        return check._replace(status="FAILED", to_do="the same --device on all hosts, cpu or cuda")
    if check.status == "ok" and len({look_at_devices(fact) for fact in hosts.values()}) > 1:
        return check._replace(status="note", to_do="in every step all wait for the slowest")
    return check


def look_at_devices(fact: dict) -> tuple[str, str, str]:
    if fact["device"] == "cpu":
        return "ok", "CPU", ""
    kinds = ", ".join(sorted(set(fact["gpus"])))
    found = f"{len(fact['gpus'])} GPUs for {fact['ranks']} ranks: {kinds}, driver {fact['driver']}"
    to_do = "each rank needs a GPU: a smaller --nproc-per-node, or what is in CUDA_VISIBLE_DEVICES?"
    return "FAILED" if len(fact["gpus"]) < fact["ranks"] else "ok", found, to_do


def look_at_shm(fact: dict) -> tuple[str, str, str]:
    if fact["shm"] is None or fact["shm"] >= 1024 * MIB:
        return "ok", "/dev/shm has 1 GiB or more" if fact["shm"] else "there is no /dev/shm", ""
    status = "FAILED" if fact["shm"] < 64 * MIB else "note"  # a container has 64 MiB by default
    to_do = "NCCL and loader workers share what they have in there; for a container: --shm-size=1g"
    return status, f"/dev/shm has {fact['shm'] // MIB} MiB", to_do


def look_at_limits(fact: dict) -> tuple[str, str, str]:
    if fact["files"] is not None and 0 <= fact["files"] < 256:
        to_do = "ulimit -n 4096 in the shell that starts torchrun"
        return "FAILED", f"{fact['files']} open files", to_do
    if fact["gpus"] and fact["rdma"] and 0 <= fact["locked"] < 64 * MIB:
        to_do = "InfiniBand wants more: ulimit -l unlimited"
        return "note", f"{fact['locked'] // 1024} KiB of locked memory", to_do
    return "ok", "256 or more open files", ""


def look_at_name(fact: dict, several: bool) -> tuple[str, str, str]:
    name, address, own = fact["host"], fact["usable"], ", ".join(fact["own"])
    if not own:
        found = f"{name} does not resolve there"
    elif address is None:
        found = f"{name} is {own} there, which no interface has"
    elif is_loopback(address):
        found = f"{name} is {address} there, a loopback"
    else:
        return "ok", address, ""
    if not several:
        return "note", f"{found}: good for one machine only", GIVE_A_NAME
    matters = fact["device"] == "cpu" and not fact["gloo"]["setting"]
    return "FAILED" if matters else "note", found, f"{GIVE_A_NAME}: {real_addresses(fact)}"


def look_at_network(fact: dict, library: str, several: bool) -> tuple[str, str, str]:
    network, variable = fact[library], f"{library.upper()}_SOCKET_IFNAME"
    found = f"{variable}={network['setting']}" if network["setting"] else f"no {variable}"
    to_do = f"set {variable} to the interface that leads to the others: {real_addresses(fact)}"
    if not fact["interfaces"]:
        return "note", f"{found}; interfaces are only looked at on Linux", "see by yourself"
    if network["address"] is None:
        none = "FAILED" if network["setting"] else "note"
        return none, f"{found}: there is no such interface, or it has no address", to_do
    found += f": {network['interface']}, {network['address']}"
    if several and is_loopback(network["address"]):
        return "FAILED", f"{found}, a loopback", to_do
    return "ok", found, ""


def real_addresses(fact: dict) -> str:
    there = [(name, a) for name, addresses in fact["interfaces"].items() for a in addresses]
    return ", ".join(f"{name} {a}" for name, a in there if not is_loopback(a)) or "there is none"


def check_data(hosts: dict[str, dict]) -> Check:
    facts = {host: fact["data"] for host, fact in hosts.items()}
    found = told({host: data["found"] for host, data in facts.items()})
    crcs = {data["crc"] for data in facts.values()}
    if len(crcs) > 1 or not all(data["sound"] for data in facts.values()):
        return Check("FAILED", "data", found, "copy MNIST/raw from a host where it is right")
    if crcs == {None}:
        return Check("note", "data", found, "train.py will download it, once per host")
    return Check("ok", "data", found)


def check_presence(facts: dict, hosts: dict, ranks: int, seconds: float) -> Check:
    missing = ", ".join(str(rank) for rank in range(ranks) if rank not in facts)
    if not missing:
        return Check("ok", "hosts", f"{len(hosts)} host(s), {ranks} rank(s): all are there")
    found = f"nothing from rank {missing} within {seconds:g} s, only from {', '.join(hosts)}"
    to_do = "see what the others print; if they are only slow, give a larger --timeout"
    return Check("FAILED", "hosts", found, to_do)


def check_links(links: dict[int, dict], hosts: dict[str, dict]) -> list[Check]:
    """links: by rank, {other host: [what is wrong with its address, with its name]}"""
    nothing = {host: ["nothing heard of its calls", ""] for host in hosts}
    calls = [
        (f"{host} -> {other}", wrong)
        for host, fact in hosts.items()
        for other, wrong in links.get(fact["rank"], nothing).items()
        if other != host
    ]
    by_number = is_address(os.environ.get("MASTER_ADDR", ""))  # then names are never asked for
    doors = "open all ports between the hosts, not only the endpoint's; or take other interfaces"
    names = f"{GIVE_A_NAME}: torchrun gives out the name of the host with rank 0"
    checks = []
    for way, (name, to_do) in enumerate((("connections", doors), ("names", names))):
        faults = [f"{call}: {wrong[way]}" for call, wrong in calls if wrong[way]]
        bad = "note" if name == "names" and by_number else "FAILED"
        more = f" and {len(faults) - 4} more" * (len(faults) > 4)
        found = "; ".join(faults[:4]) + more or f"all {len(calls)} ways"
        checks.append(Check(bad if faults else "ok", name, found, to_do))
    return checks


def is_address(text: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return False


def check_sums(sums: dict[int, dict], facts: dict[int, dict], seconds: float) -> Check:
    faults = []
    for rank, fact in facts.items():
        found = sums.get(rank, {"error": f"no answer within {seconds:g} s"})
        wrong = found.get("wrong") and f"{found['wrong']} wrong numbers"
        if error := found.get("error") or wrong:
            faults.append(f"{fact['host']} (rank {rank}): {error}")
    if faults:
        to_do = "suspect the host without an answer, or with wrong numbers: cable, card, memory"
        return Check("FAILED", "all-reduce", "; ".join(faults), to_do)
    small, large = 1000 * sums[0]["small"], 1000 * sums[0]["large"]
    sent = 2 * (len(facts) - 1) / len(facts) * 25 * MIB / 1e6 / large
    found = f"correct; medians: 1 number {small:.2f} ms, 25 MiB {large:.1f} ms"
    return Check("ok", "all-reduce", f"{found} ({sent:.2f} GB/s out of each rank)")


def check_speed(facts: dict[int, dict]) -> Check:
    ranks = sorted(facts, key=lambda rank: facts[rank]["speed"])
    fast, slow = facts[ranks[0]]["speed"], facts[ranks[-1]]["speed"]
    found = f"slowest is {facts[ranks[-1]]['host']} (rank {ranks[-1]}): {slow:.1f} ms for a matrix"
    found += f" product, the fastest {fast:.1f} ms"
    status = "note" if slow > 1.5 * fast else "ok"
    return Check(status, "speed", found, "in every step all wait for it: what else runs there?")


# ----------------------------------------------------------------------- without torchrun


def check_endpoint(name: str, port: int, seconds: float) -> Check:
    """On its host: could torchrun open its store there? Elsewhere: does a store answer?"""
    result = partial(Check, name="endpoint")
    where = f"{name}:{port}"
    try:
        address = resolve(name, seconds)[0]
    except Unreached as reason:
        return result("FAILED", found=str(reason), to_do=f"{GIVE_A_NAME}; or --endpoint by address")
    if is_loopback(address) and address != name and name != "localhost":
        found = f"{name} is {address} here: every host would wait for itself"
        return result("FAILED", found=found, to_do=GIVE_A_NAME)
    if is_own(address):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server((address, port), family=family).close()
            found = f"{where} ({address}) is this host; the port is free for torchrun"
            return result("ok", found=found)
        except PermissionError:
            found = f"{where}: only root may open this port"
            return result("FAILED", found=found, to_do="take one above 1023")
        except OSError:  # taken, perhaps by the torchrun that waits there
            pass
    try:
        reach(name, port, min(5, seconds)).close()
    except Unreached as reason:
        to_do = "start torchrun there first; then it is the port, a firewall, the cable"
        return result("FAILED", found=str(reason), to_do=to_do)
    if has_store(address, port, seconds):
        return result("ok", found=f"a torchrun waits at {where} ({address})")
    to_do = f"another port; or see there what it is: ss -ltnp 'sport = {port}'"
    return result("FAILED", found=f"at {where} is something else than torchrun", to_do=to_do)


def has_store(address: str, port: int, seconds: float) -> bool:
    """Asked by a process of its own: for the answer TCPStore would wait without limit."""
    connect = f"dist.TCPStore({address!r}, {port}, is_master=False, wait_for_workers=False)"
    ask = [sys.executable, "-c", f"import torch.distributed as dist; {connect}"]
    try:
        return subprocess.run(ask, stderr=subprocess.DEVNULL, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


# ----------------------------------------------------------------------- input and output


def tell(args: argparse.Namespace, checks: list[Check], hosts: dict[str, dict]) -> int:
    """Print the checks -> exit code"""
    failed = [check.name for check in checks if check.status == "FAILED"]
    if args.json:
        rows = [check._asdict() for check in checks]
        print(json.dumps({"sound": not failed, "hosts": list(hosts), "checks": rows}, indent=1))
        return 1 if failed else 0
    lines = [f"preflight: {', '.join(hosts)}"]
    for check in checks:
        lines.append(f"{check.status:8}{check.name:15}{check.found}")
        if check.status != "ok" and check.to_do:
            lines.append(f"{'':8}{'to do:':15}{check.to_do}")
    lines.append(f"preflight: FAILED: {', '.join(failed)}" if failed else "preflight: all sound")
    print("\n".join(lines))
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.error = stop
    add, data = parser.add_argument, os.environ.get("MNIST_ROOT", "data")
    add("--data", type=Path, default=data, help="folder that holds MNIST/raw, or $MNIST_ROOT")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what ranks run on")
    add("--endpoint", type=endpoint, help="HOST:PORT where the job meets; without torchrun")
    add("--timeout", type=seconds, default=10, help="seconds that each wait may take")
    add("--json", action="store_true", help="print JSON instead of the table")
    args = parser.parse_args()
    if args.endpoint and "RANK" in os.environ:
        stop("--endpoint is for a start without torchrun, which has met there already")
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    return args


def endpoint(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not 1 <= int(port) <= 65535:
        raise ValueError
    return name.strip("[]"), int(port)


def seconds(text: str) -> float:
    if not 1 <= float(text) <= 600:
        raise ValueError
    return float(text)


endpoint.__name__ = "HOST:PORT"  # argparse prints these when it refuses a value
seconds.__name__ = "number of seconds from 1 to 600"


def stop(message: str) -> None:
    """Bad input: one line and exit code 2. Of the ranks on one host the first speaks for all."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"preflight: error: {message}", file=sys.stderr)
    else:
        time.sleep(5)  # when one rank ends, torchrun ends all: leave the speaker its time
    sys.exit(2)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\npreflight: interrupted", file=sys.stderr)
        sys.exit(130)

"""Before a run on one machine: what a rank finds here, and what is too little of it.

A function that begins with `judge_` gets numbers and returns a Checked, so that tests can give it
numbers of other machines. Sizes are in bytes.
"""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
MIB = 2**20


@dataclass
class Checked:
    """What was found; `level` is ok, warn (too little for most runs) or FAILED (runs will fail)."""

    check: str
    found: str
    level: str = "ok"
    to_do: str = ""


def main():
    """Print a line for each check -> the exit code."""
    cards, results = look_at_cards()
    ranks = max(1, cards)
    results = [
        judge_cores(*cores(), ranks),
        judge_open_files(open_files()),
        judge_shared_memory(*shared_memory()),
        judge_memory(*memory(), ranks),
        *results,
        judge_name(socket.gethostname(), addresses(socket.gethostname())),
        judge_ipv6(ipv6_works()),
    ]
    for result in results:
        print(f"{result.level:8}{result.check:14}{result.found}")
        if result.to_do:
            print(f"{'':22}to do: {result.to_do}")
    failed = [result.check for result in results if result.level == "FAILED"]
    if failed:
        print(f"preflight: FAILED ({', '.join(failed)})")
        return 1
    warned = [result.check for result in results if result.level == "warn"]
    print(f"preflight: this machine is ready{', but see ' + ', '.join(warned) if warned else ''}")
    return 0


# ------------------------------------------------------------------ cores, files, memory


def cores():
    """-> cores that this process may use, cores of the machine, and the limit of a container."""
    usable = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    quota = None
    limit = read("/sys/fs/cgroup/cpu.max").split()
    if len(limit) == 2 and limit[0].isdigit():
        quota = int(limit[0]) / int(limit[1])
    return usable, os.cpu_count() or 1, quota


def judge_cores(usable, all_of_them, quota, ranks):
    found = f"{usable} of {all_of_them}"
    if quota is not None:
        found += f", limited to the time of {quota:g}"
        usable = min(usable, quota)
    needed = 2 * ranks  # for each rank one, and one for a loader worker
    if usable >= needed or ranks == 1:
        return Checked("cores", found)
    to_do = f"{ranks} ranks want {needed} or more: --cpus-per-task of Slurm, the limit of the pod"
    return Checked("cores", found, "warn", to_do)


def open_files():
    try:
        import resource  # Windows has none
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def judge_open_files(limit):
    if limit is None or limit < 0:  # RLIM_INFINITY
        return Checked("open files", "no limit")
    found = f"{limit} (ulimit -n)"
    if limit >= 4096:
        return Checked("open files", found)
    to_do = "ulimit -n 65536 before the launch: each tensor from a loader worker holds a file"
    return Checked("open files", found, "FAILED" if limit < 256 else "warn", to_do)


def shared_memory():
    """-> size and free space of /dev/shm, or None where there is none."""
    try:
        status = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def judge_shared_memory(size, free):
    if size is None:
        return Checked("/dev/shm", "this system has none")
    found = f"{free / GIB:.1f} of {size / GIB:.1f} GiB are free"
    if free >= GIB:
        return Checked("/dev/shm", found)
    to_do = "docker run --shm-size=8g or --ipc=host; on Kubernetes an emptyDir with medium: Memory"
    return Checked("/dev/shm", found, "FAILED" if free < 16 * MIB else "warn", to_do)


def memory():
    """-> free memory of the host, and what the container's limit leaves, or None."""
    available = re.search(r"^MemAvailable: +(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    left = None
    limit = read("/sys/fs/cgroup/memory.max").strip()
    used = read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        left = int(limit) - int(used)
    return 1024 * int(available[1]) if available else None, left


def judge_memory(free, left, ranks):
    if free is None:
        return Checked("memory", "unknown on this system")
    found = f"{free / GIB:.1f} GiB of the host are free"
    if left is not None:
        found += f", the container's limit leaves {left / GIB:.1f} GiB"
        free = min(free, left)
    if free >= 2 * GIB * ranks:
        return Checked("memory", found)
    to_do = (
        "each rank needs some 2 GiB, and more for its loader workers: --mem, the limit of the pod"
    )
    return Checked("memory", found, "FAILED" if free < GIB / 2 else "warn", to_do)


def read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


# ------------------------------------------------------------------ cards


def look_at_cards():
    """-> the number of cards that PyTorch sees, and a result for each."""
    try:
        import torch
    except ImportError:
        to_do = "install PyTorch into the environment of this Python"
        return 0, [Checked("cards", "PyTorch is not installed", "FAILED", to_do)]
    if not torch.cuda.is_available():
        kind = "a CPU build" if torch.version.cuda is None else "no driver or no GPU is seen"
        return 0, [Checked("cards", f"none: {kind} (torch {torch.__version__})")]
    count = torch.cuda.device_count()
    results = []
    for index in range(count):
        card = torch.cuda.get_device_properties(index)
        bus = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}"
        capability = (card.major, card.minor)
        results.append(judge_card(index, bus, card.name, capability, torch.cuda.get_arch_list()))
    names = {torch.cuda.get_device_name(index) for index in range(count)}
    results += judge_order(names, os.environ.get("CUDA_DEVICE_ORDER"))
    return count, results


def judge_card(index, bus, name, capability, arch_list):
    """arch_list: torch.cuda.get_arch_list(), such as ["sm_80", "compute_90"].

    Code for sm_80 also runs on 8.6, and compute_ is compiled by the driver for later cards.
    """
    major, minor = capability
    runs = False
    for arch in arch_list:
        kind, _, number = arch.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        have = (int(digits[0][:-1]), int(digits[0][-1]))
        same = have[0] == major and have[1] <= minor
        runs = runs or same or (kind == "compute" and have <= (major, minor))
    found = f"{index} is PCI {bus}, {name}, capability {major}.{minor}"
    if runs:
        return Checked(f"card {index}", found)
    to_do = f"install a build of PyTorch for it; this one has {' '.join(arch_list)}"
    return Checked(f"card {index}", found, "FAILED", to_do)


def judge_order(names, order):
    """CUDA numbers different cards by their speed, and nvidia-smi by their PCI bus."""
    if len(names) < 2 or order == "PCI_BUS_ID":
        return []
    to_do = "export CUDA_DEVICE_ORDER=PCI_BUS_ID, so that the numbers are those of nvidia-smi"
    return [Checked("card order", f"the cards differ: {', '.join(sorted(names))}", "warn", to_do)]


# ------------------------------------------------------------------ name and network


def addresses(host):
    """The addresses to which a name leads."""
    try:
        entries = socket.getaddrinfo(host, None)
    except OSError:
        return []
    return sorted({entry[4][0] for entry in entries})


def judge_name(host, found):
    to_do = "in DNS or in /etc/hosts, give the name the address that other nodes reach"
    if not found:
        return Checked("own name", f"{host} is unknown", "FAILED", to_do)
    text = f"{host} is {' '.join(found)}"
    if all(address == "::1" or address.startswith("127.") for address in found):
        to_do = (
            "for several nodes, give it the address that the others use, in DNS or in /etc/hosts"
        )
        return Checked("own name", text, "warn", to_do)
    return Checked("own name", text)


def ipv6_works():
    try:
        with socket.socket(socket.AF_INET6) as opened:
            opened.bind(("::1", 0))
    except OSError:
        return False
    return True


def judge_ipv6(works):
    found = "works" if works else "is off: lines such as `errno: 97` are then harmless"
    return Checked("IPv6", found)

"""Jobs start while the ports of an earlier one are taken, and two at once do not meet."""

import contextlib
import re
import socket
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

GROUP = False
WORLD_SIZES = (2,)  # processes that launch jobs
SIZES = (1, 2, 2)  # the ranks of each job
LEARNT = (
    "A fixed port is shared by all jobs of a machine: take a free one, or a store in a new file."
)
HINTS = (
    "Start it in one terminal, and `ss -ltnp` (or `lsof -iTCP -sTCP:LISTEN`) in another. Which "
    "number is the same in every job?",
    "The ranks find one another at one address. If its number is in the script, every job has the "
    "same. A port that was free a moment ago may be taken when it is used; a file in a folder that "
    "is new for each job needs no port.",
    "In launch: with tempfile.TemporaryDirectory() as folder; give the ranks "
    "f'file://{folder}/store', which is the init_method of their init_process_group.",
)


def observe(mine):
    """One process launches a job, takes its ports, launches the next; the other one a third."""
    sys.path.insert(0, str(Path(mine.__file__).parent))  # spawned processes import it from there
    folder, found = Path.cwd(), {"job": 2}
    with contextlib.suppress(FileExistsError):
        (folder / "claimed").touch(exist_ok=False)
        found["job"] = 0
    try:
        with contextlib.ExitStack() as taken:
            if found["job"] == 0:
                found["alone"] = mine.launch(report, SIZES[0])
                found["ports"] = ports_in(found["alone"])
                for port in found["ports"]:
                    take(port, taken)
                found["job"] = 1
                (folder / "taken").touch()
            wait_for([folder / "taken"], folder)
            work = partial(meet, folder, found["job"])
            found["together"] = mine.launch(work, SIZES[found["job"]])
    except Exception:
        (folder / "failed").touch()
        found["error"] = last_words(mine.__file__)
    return found


def last_words(file):
    """The line of the reader's file and the message of an error, in this process or in a rank."""
    text = traceback.format_exc().strip()
    numbers = re.findall(rf'File "{re.escape(file)}", line (\d+)', text)
    return f"line {numbers[-1] if numbers else '?'}: {text.splitlines()[-1]}"


def report(rank):
    """The work of the first job: which ports its only rank listens on."""
    process = psutil.Process()
    connections = getattr(process, "net_connections", None) or process.connections
    ports = {c.laddr.port for c in connections("tcp") if c.status == psutil.CONN_LISTEN}
    return {"rank": rank, "sum": add_up(1), "ports": sorted(ports)}


def meet(folder, job, rank):
    """The work of the other two: it ends once the ranks of both are there."""
    (folder / f"{job}-{rank}").touch()
    wait_for([folder / f"{job}-{rank}" for job in (1, 2) for rank in range(SIZES[job])], folder)
    return {"rank": rank, "sum": add_up(10 ** (2 * job + rank))}


def add_up(number):
    tensor = torch.tensor(number)
    dist.all_reduce(tensor)
    return tensor.item()


def wait_for(files, folder):
    while not all(file.exists() for file in files) and not (folder / "failed").exists():
        time.sleep(0.1)


def ports_in(returned):
    with contextlib.suppress(Exception):
        return list(returned[0]["ports"])
    return []


def take(port, taken):
    """Listen on the port, on all addresses, as another program may."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with contextlib.suppress(OSError):  # something has it already
        taken.enter_context(socket.create_server(("", port), family=family, dualstack_ipv6=both))


def judge(ranks):
    first, other = sorted(ranks, key=lambda rank: rank["job"])
    if first["job"] == 0:
        return f"a job that is alone on the machine fails:\n{first['error']}"
    if wrong := differs(first["alone"], [{"rank": 0, "sum": 1, "ports": first["ports"]}]):
        return wrong
    if error := first.get("error") or other.get("error"):
        ports = " and ".join(map(str, first["ports"]))
        return (
            f"a first job listened on {ports} and ended. Of two jobs that then start at the same "
            f"time, while another program has these ports, one fails:\n{error}"
        )
    for job, rank in ((1, first), (2, other)):
        total = sum(10 ** (2 * job + number) for number in range(SIZES[job]))
        wanted = [{"rank": number, "sum": total} for number in range(SIZES[job])]
        if wrong := differs(rank["together"], wanted):
            return wrong
    return None


def differs(returned, wanted):
    if isinstance(returned, list) and returned == wanted:
        return None
    return f"launch was to return {wanted}, what work returned on each rank; it returned {returned}"

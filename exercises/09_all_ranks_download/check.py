"""One download per node; who comes before, during or after it reads the whole file.

Nothing depends on who is faster. A download goes on only when each other rank of the node is back,
downloads as well, or waits for something (it uses no processor time, or uses it in a loop).
"""

import os
import platform
import socket
import time
from pathlib import Path

import torch.distributed as dist

from exercises.ranks import seconds_used

WORLD_SIZES = (2, 4)
ON_A_NODE = 2
CASES = (
    (0, "all ranks come at the same time"),
    (1, "rank 0 comes first"),
    (2, "the file is already there"),
)
CASE = "when {1}: "
CONTENT = bytes(range(200))
STILL = 0.5  # seconds without processor time: the rank waits
LOOPS = 2.0  # seconds of processor time: the rank waits in a loop
really_sleep = time.sleep
real_uname = os.uname if hasattr(os, "uname") else None
HOST_NAMES = (socket.gethostname, socket.getfqdn, platform.node)


def observe(mine, number, _):
    rank = dist.get_rank()
    node, local_rank = divmod(rank, ON_A_NODE)
    mates = [r for r in range(dist.get_world_size()) if r // ON_A_NODE == node and r != rank]
    os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["GROUP_RANK"] = str(node)
    os.environ["LOCAL_WORLD_SIZE"] = str(len(mates) + 1)
    name_the_node(mine, f"node{node}")
    everyone = dist.new_group()  # a barrier of ours is not to meet one of the reader's
    Path(f"{rank}.pid").write_text(str(os.getpid()))
    Path(f"node{node}").mkdir(exist_ok=True)
    time.sleep = short_sleep
    path = Path(f"node{node}", f"images{min(number, 1)}")
    downloads = []

    def note(what):
        Path(f"{number}-{rank}-{what}").touch()

    def download(to):
        downloads.append(to)
        note("downloads")
        wait(number, mates, "held", "downloads", "back")
        with open(to, "wb", buffering=0) as file:
            file.write(CONTENT[:80])
            note("half")
            wait(number, mates, "downloads", "back")
            file.write(CONTENT[80:])

    dist.barrier(group=everyone)
    if number == 1 and local_rank > 0:
        note("held")
        wait(number, mates, "half", "back", unless="downloads")
    read = mine.load(path, download)
    note("back")
    time.sleep = really_sleep
    return {
        "downloads": len(downloads),
        "read": len(read) if isinstance(read, bytes) else read,
        "right": read == CONTENT,
    }


def short_sleep(seconds):
    """A rank that sleeps does not wait for anything, so it sleeps for a moment only."""
    really_sleep(min(seconds, 0.01))


def name_the_node(mine, name):
    """Nodes have different host names, also for a file that has imported such a function."""

    def host_name(*_):
        return name

    socket.gethostname = host_name
    socket.getfqdn = host_name
    platform.node = host_name
    for own, value in list(vars(mine).items()):
        if value in HOST_NAMES:
            setattr(mine, own, host_name)
    if real_uname:
        os.uname = lambda: os.uname_result((real_uname()[0], name, *real_uname()[2:]))


def wait(number, mates, *notes, unless=None):
    """Until each of these ranks has left one of the notes, or waits for something itself."""
    for mate in mates:
        pid = int(Path(f"{mate}.pid").read_text())
        start = seconds_used(pid)[0]
        used = start
        since = time.monotonic()
        while not any(has_left(number, mate, note) for note in notes):
            now, runs = seconds_used(pid)
            if runs or now - used > 0.02:
                used = now
                since = time.monotonic()
            waits = time.monotonic() - since > STILL or used - start > LOOPS
            if waits and not (unless and has_left(number, mate, unless)):
                break
            really_sleep(0.01)


def has_left(number, mate, note):
    return Path(f"{number}-{mate}-{note}").exists()


def facts(found, number, _):
    nodes = []
    for first in range(0, len(found), ON_A_NODE):
        node = found[first : first + ON_A_NODE]
        nodes.append(sum(rank["downloads"] for rank in node))
    return {
        "downloads on each node": nodes,
        "bytes that each rank reads": [rank["read"] for rank in found],
        "the right bytes": all(rank["right"] for rank in found),
    }

"""One download per node; who comes before, during or after it reads the whole file.

Nothing depends on who is faster. A download goes on only when each other rank of the node is back,
downloads as well, or waits for something (it uses no processor time, or uses it in a loop).
"""

import os
import time
from pathlib import Path

import torch.distributed as dist

from exercises.checks.ranks import seconds_used

WORLD_SIZES = (2, 4)
ON_A_NODE = 2
CASES = ((0, "all come together"), (1, "rank 0 comes first"), (2, "the file is there"))
CASE = "when {1}: "
CONTENT = bytes(range(200))
STILL, LOOPS = 0.5, 2.0  # seconds without, or of, processor time: a rank that waits
really_sleep = time.sleep


def observe(mine, number, _):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    node, local_rank = divmod(rank, ON_A_NODE)
    mates = [r for r in range(world_size) if r // ON_A_NODE == node and r != rank]
    os.environ |= {"LOCAL_RANK": f"{local_rank}", "GROUP_RANK": f"{node}"}
    os.environ["LOCAL_WORLD_SIZE"] = f"{len(mates) + 1}"
    everyone = dist.new_group()  # a barrier of ours is not to meet one of the reader's
    Path(f"{rank}.pid").write_text(str(os.getpid()))
    Path(f"node{node}").mkdir(exist_ok=True)
    time.sleep = lambda seconds: really_sleep(min(seconds, 0.01))  # to sleep is not to wait
    path, downloads = Path(f"node{node}", f"images{min(number, 1)}"), []

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
    return {"downloads": len(downloads), "read": read}


def wait(number, mates, *notes, unless=None):
    """Until each of these ranks has left one of the notes, or waits for something itself."""
    for mate in mates:
        pid = int(Path(f"{mate}.pid").read_text())
        start = used = seconds_used(pid)[0]
        since = time.monotonic()
        while not any(Path(f"{number}-{mate}-{note}").exists() for note in notes):
            now, runs = seconds_used(pid)
            if runs or now - used > 0.02:
                used, since = now, time.monotonic()
            waits = time.monotonic() - since > STILL or used - start > LOOPS
            if waits and not (unless and Path(f"{number}-{mate}-{unless}").exists()):
                break
            really_sleep(0.01)


def facts(found, number, _):
    downloads = [rank["downloads"] for rank in found]
    nodes = [sum(downloads[n : n + ON_A_NODE]) for n in range(0, len(found), ON_A_NODE)]
    read = [len(r["read"]) if isinstance(r["read"], bytes) else r["read"] for r in found]
    return {
        "downloads on each node": nodes,
        "bytes that each rank reads": read,
        "the right bytes": all(rank["read"] == CONTENT for rank in found),
    }

"""One download per node; who comes before, during or after it reads the whole file.

Nothing depends on who is faster: a download goes on only when each other rank of the node is back,
downloads as well, or waits for something (it uses no processor time, or does so in a loop).
"""

import os
import time
from pathlib import Path

import psutil
import torch.distributed as dist

WORLD_SIZES = (2, 4)
ON_A_NODE = 2
ROUNDS = ("all come together", "rank 0 comes first", "the file is there")
CONTENT = bytes(range(200))
STILL, LOOPS = 0.5, 2.0  # seconds without, or of, processor time: a rank that waits
LEARNT = "One rank per node writes, and a barrier comes before anyone looks at the file."
HINTS = (
    "Who downloads on each node, and what do the others do meanwhile?",
    "One rank of each node (LOCAL_RANK) downloads. The others have to wait for it before they look "
    "whether the file is there, because half a file is there as well.",
    "if LOCAL_RANK is 0 and the file is not there: download. Then dist.barrier(), on all ranks. "
    "Then read.",
)
RUNS = psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP
really_sleep = time.sleep


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    node, local_rank = divmod(rank, ON_A_NODE)
    mates = [r for r in range(world_size) if r // ON_A_NODE == node and r != rank]
    os.environ |= {"LOCAL_RANK": f"{local_rank}", "GROUP_RANK": f"{node}"}
    os.environ["LOCAL_WORLD_SIZE"] = f"{len(mates) + 1}"
    everyone = dist.new_group()  # a barrier of ours is not to meet one of the reader's
    Path(f"{rank}.pid").write_text(str(os.getpid()))
    Path(f"node{node}").mkdir(exist_ok=True)
    time.sleep = lambda seconds: really_sleep(min(seconds, 0.01))  # to sleep is not to wait
    try:
        return {"rounds": [one_round(mine, n, rank, mates, everyone) for n in range(3)]}
    finally:
        time.sleep = really_sleep


def one_round(mine, number, rank, mates, everyone):
    path = Path(f"node{rank // ON_A_NODE}", f"images{min(number, 1)}")
    downloads = []

    def note(what):
        Path(f"{number}-{rank}-{what}").touch()

    def download(to):
        downloads.append(str(to))
        note("downloads")
        wait(number, mates, "held", "downloads", "back")
        with open(to, "wb", buffering=0) as file:
            file.write(CONTENT[:80])
            note("half")
            wait(number, mates, "downloads", "back")
            file.write(CONTENT[80:])

    dist.barrier(group=everyone)
    if number == 1 and rank % ON_A_NODE > 0:
        note("held")
        wait(number, mates, "half", "back", unless="downloads")
    read = mine.load(path, download)
    note("back")
    return {"downloads": len(downloads), "read": read}


def wait(number, mates, *notes, unless=None):
    """Until each of these ranks has left one of the notes, or waits for something itself."""
    for mate in mates:
        process = psutil.Process(int(Path(f"{mate}.pid").read_text()))
        start = used = seconds(process)
        since = time.monotonic()
        while not any(Path(f"{number}-{mate}-{note}").exists() for note in notes):
            runs = psutil.LINUX and process.status() in RUNS
            if runs or seconds(process) - used > 0.02:
                used, since = seconds(process), time.monotonic()
            waits = time.monotonic() - since > STILL or used - start > LOOPS
            if waits and not (unless and Path(f"{number}-{mate}-{unless}").exists()):
                break
            really_sleep(0.01)


def seconds(process):
    return sum(process.cpu_times()[:2])


def judge(ranks):
    for number, when in enumerate(ROUNDS):
        seen = [rank["rounds"][number] for rank in ranks]
        for node in range((len(ranks) + 1) // ON_A_NODE):
            mine = range(len(ranks))[node * ON_A_NODE : (node + 1) * ON_A_NODE]
            count, wanted = sum(seen[r]["downloads"] for r in mine), int(number < 2)
            if count != wanted:
                return (
                    f"when {when}: the number of downloads on node {node} (rank "
                    f"{' and '.join(map(str, mine))}) is {count}, not {wanted}"
                )
        for rank, values in enumerate(seen):
            if not isinstance(values["read"], bytes):
                return f"load is to return the content of the file, not {values['read']!r}"
            if values["read"] != CONTENT:
                return (
                    f"when {when}: rank {rank} has read {len(values['read'])} of "
                    f"{len(CONTENT)} bytes of the file"
                )
    return None

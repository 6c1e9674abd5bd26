"""Two nodes on this machine: each is a torchrun of its own. The notebook 05_multinode starts them.

The script of stage 5 trains here on small digits, in a folder that the caller gives. The nodes
communicate over 127.0.0.1, so nothing here says how fast a network is.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lib.processes import free_port

from .ranks import Run, torchrun
from .records import digits

SCRIPT = "05_multinode/minimal.py"


def node(number: int, port: int, script: str, *flags, ranks: int = 1, **how) -> Run:
    """Run torchrun as if on one of two nodes.

    A cluster needs neither --local-addr nor is_host. Here both nodes have one address, so torchrun
    must be told which of them runs the store of the rendezvous.
    """
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    options += ["--local-addr", "127.0.0.1", "--rdzv-conf", f"is_host={number == 0}"]
    return torchrun(script, ranks, *map(str, flags), options=options, **how)


def on_two_nodes(script: str, ranks: int) -> list[dict]:
    """Run a script with some ranks on each of two nodes -> what each rank has given, by RANK.

    The script gives its environment. The rendezvous chooses which node comes first.
    """
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda number: node(number, port, script, ranks=ranks), (0, 1)))
    values = [given for run in runs for given in run.values]
    return sorted(values, key=lambda given: int(given["environment"]["RANK"]))


def in_folder(folder: Path) -> dict:
    """How the script of stage 5 is run in a new or old folder: its snapshot is there."""
    folder.mkdir(exist_ok=True)
    return {"cwd": folder, "env": {"MNIST_ROOT": str(digits())}}


def train(folder: Path) -> Run:
    """Run the script of stage 5 on two ranks of one node."""
    return torchrun(SCRIPT, 2, **in_folder(folder))


def killed_after_an_epoch(folder: Path) -> None:
    """Kill such a run when it has written its first snapshot, and copy this to first-epoch.pt."""
    snapshot = folder / "snapshot.pt"
    torchrun(SCRIPT, 2, kill_at=snapshot, check=False, **in_folder(folder))
    copy = folder / "first-epoch.pt"
    copy.write_bytes(snapshot.read_bytes())  # The second epoch will replace the snapshot.


def lose_a_node(folder: Path) -> tuple[Run, Run, Run]:
    """Run the script of stage 5 on two nodes, kill node 1 after the first epoch, and start it again

    -> node 1 until it is killed, node 0, node 1 after it was started again.
    """
    port = free_port()
    how = in_folder(folder) | {"restarts": 1}
    snapshot = folder / "snapshot.pt"
    with ThreadPoolExecutor(1) as pool:
        node_0 = pool.submit(node, 0, port, SCRIPT, **how)
        lost = node(1, port, SCRIPT, kill_at=snapshot, check=False, **how)
        again = node(1, port, SCRIPT, **how)
        return lost, node_0.result(), again


ADDS_UP_FOREVER = """
import sys
import time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    Path(sys.argv[1]).touch()
    time.sleep(0.1)
"""


def lose_the_endpoint(file: Path) -> Run:
    """Start two nodes, and kill node 0 when their ranks have added up and left a file -> node 1."""
    port = free_port()
    how = {"restarts": 1, "check": False}
    with ThreadPoolExecutor(1) as pool:
        node_1 = pool.submit(node, 1, port, ADDS_UP_FOREVER, file, **how)
        node(0, port, ADDS_UP_FOREVER, file, kill_at=file, **how)
        return node_1.result()

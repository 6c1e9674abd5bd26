"""Two nodes on this machine: each is a torchrun of its own. The notebook 05_multinode starts them.

Stage 5 trains here on small digits, in a folder that the caller gives. The nodes communicate over
127.0.0.1, so nothing here says how fast a network is.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lib.processes import free_port

from .ranks import Run, torchrun
from .records import digits

STAGE = "05_multinode/train.py"


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


def flags(folder: Path) -> list:
    """The flags of the training that is the same in all runs of a folder."""
    data = ["--data", digits(), "--device", "cpu", "--record", folder / "runs.jsonl"]
    return [*data, "-e", 2, "-b", 60, "--lr", 0.01]


def train(folder: Path, *more, ranks: int = 2, **how) -> Run:
    """Train two epochs of stage 5 on one node."""
    return torchrun(STAGE, ranks, *map(str, [*flags(folder), *more]), **how)


def lose_node_1(folder: Path, snapshot: Path, checkpoint: Path) -> tuple[Run, Run, Run]:
    """Train two epochs of stage 5 on two nodes, kill node 1 after the first, and start it again

    -> node 1 until it is killed, node 0, node 1 after it was started again.
    """
    port = free_port()
    line = [STAGE, *flags(folder), "--snapshot", snapshot, "--checkpoint", checkpoint]
    with ThreadPoolExecutor(1) as pool:
        node_0 = pool.submit(node, 0, port, *line, restarts=1)
        lost = node(1, port, *line, restarts=1, kill_at=snapshot, check=False)
        copy = snapshot.with_name("first-epoch.snapshot")
        copy.write_bytes(snapshot.read_bytes())  # The second epoch will replace the snapshot.
        again = node(1, port, *line, restarts=1)
        return lost, node_0.result(), again


def lose_node_0(script: str, file: Path) -> Run:
    """Run a script on two nodes, and kill node 0 when the script has written a file -> node 1."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        node_1 = pool.submit(node, 1, port, script, file, restarts=1, check=False)
        node(0, port, script, file, restarts=1, check=False, kill_at=file)
        return node_1.result()

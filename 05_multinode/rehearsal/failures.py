"""What happens when something fails? Break a run of two nodes on purpose, and watch how it ends.

Each case makes two nodes (hosts.py), starts torchrun with train.py on both, breaks one thing, and
prints for each node after how many seconds torchrun ended, with which exit code, and the line that
gives the reason; then what is left on the disk, and how to find the root cause.

    sudo env "PATH=$PATH" python 05_multinode/rehearsal/failures.py   # some four minutes
    sudo env "PATH=$PATH" python 05_multinode/rehearsal/failures.py killed cut_off
"""

import argparse
import importlib
import inspect
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lib import processes
from tools import draw_digits

hosts = importlib.import_module("05_multinode.rehearsal.hosts")
two_nodes = importlib.import_module("05_multinode.rehearsal.two_nodes")

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--timeout", str(two_nodes.TIMEOUT))  # for train.py: how long a rank waits for the others
# For torchrun: it looks for the endpoint for 60 s and waits for other nodes for 600 s by default.
SHORT_RENDEZVOUS = ("--rdzv-conf", "read_timeout=3,join_timeout=5")
PEER_LOST = "Connection (closed|reset) by peer"
# What a rank that waits prints first depends on where gloo is when the time is over.
TIMED_OUT = r"Timed out waiting \d+ms|Application timeout caused pair closure"
STORE_LOST = "The connection to the C10d store has failed"
NO_RENDEZVOUS = f"{STORE_LOST}|Rendezvous(Timeout|Closed)Error"


# ------------------------------------------------------------------- the cases


def killed(run):
    """Rank 1 is killed, as by a system that is out of memory.

    Root cause: the node whose torchrun names a signal. The other node notices at once, because the
    kernel closes the connections of a process that dies.
    """
    run.train_an_epoch()
    run.inject(lambda: run.rank(1).kill())
    return run.result((1, PEER_LOST), (1, r"Signal 9 \(SIGKILL\) received"))


def raises(run):
    """Rank 1 raises an exception.

    Root cause: the node with a traceback that mentions no connection, peer or timeout.
    """
    run.start_both(fault="raises 1")
    return run.result((1, PEER_LOST), (1, "OSError: an image is missing"))


def exits(run):
    """Rank 1 ends too early, with exit code 0.

    Root cause: the node whose torchrun ends with exit code 0 while the others fail. If it is the
    node of the endpoint, its torchrun waits 300 s for the others before it ends.
    """
    run.start_both(fault="exits 1")
    return run.result((1, PEER_LOST), (0, "Error waiting on exit barrier"))


def stopped(run):
    """Rank 1 is frozen (SIGSTOP), as on a machine that swaps.

    Root cause: the node that prints no timeout; the rank that prints one was waiting. The torchrun
    of the frozen rank sends SIGTERM, which has no effect, and SIGKILL after --shutdown-timeout
    seconds (here 3, by default 30).
    """
    run.train_an_epoch(*SHORT, torchrun=("--shutdown-timeout", "3"))
    run.inject(lambda: run.rank(1).suspend())
    return run.result((1, TIMED_OUT), (1, "forcefully exiting via 9"))


def hangs(run):
    """Rank 0, on the node of the endpoint, hangs in an endless loop.

    Root cause: the node that prints nothing, and there the rank without a timeout. Its torchrun
    waits for the rank without any limit: end it yourself.
    """
    run.start_both(*SHORT, fault="hangs 0")
    return run.result((two_nodes.STILL_WAITS, ""), (1, TIMED_OUT))


def cut_off(run):
    """The network of node 1 is down until node 0 has given up.

    Both ranks end after --timeout. Root cause: the node that the others cannot reach (ping). Its
    torchrun receives nothing while the network is down; afterwards the store is gone.
    """
    run.train_an_epoch(*SHORT)
    run.inject(lambda: run.hosts.cut("host1"))
    run.wait_until(lambda: run.torchruns[0].ended)
    run.hosts.join("host1")
    return run.result((1, TIMED_OUT), (1, STORE_LOST))


def head_lost(run):
    """The node of the endpoint is lost: its network is down for good.

    The other rank ends after --timeout, but its torchrun has sent a request to the store, and waits
    until the kernel stops sending it again: about a quarter of an hour by default, some ten seconds
    with sysctl net.ipv4.tcp_retries2=5, as here.
    """
    for name in run.hosts.names():
        run.hosts.start(name, ["sysctl", "-qw", "net.ipv4.tcp_retries2=5"]).wait()
    run.train_an_epoch(*SHORT)
    run.inject(lambda: run.hosts.cut("host0"))
    return run.result((1, TIMED_OUT), (1, STORE_LOST))


def wrong_name(run):
    """The endpoint's name does not exist.

    Root cause: the name in "cannot be retrieved"; check it with getent hosts NAME. torchrun looks
    it up for read_timeout seconds, up to twice (--rdzv-conf, here 3, by default 60).
    """
    run.start_both(endpoint=f"hots0:{run.port}", torchrun=SHORT_RENDEZVOUS)
    message = r"network addresses of \(hots0, \d+\) cannot be retrieved"
    return run.result((1, message), (1, message))


def wrong_port(run):
    """Node 1 has another port than node 0.

    Root cause: the node that cannot connect. The other one waits join_timeout seconds for more
    nodes (--rdzv-conf, here 5, by default 600).
    """
    run.start(0, torchrun=SHORT_RENDEZVOUS)
    run.start(1, torchrun=SHORT_RENDEZVOUS, endpoint="host0:29501")
    message = r"timed out after \d+ms while trying to connect to \(host0, 29501\)"
    return run.result((1, "RendezvousTimeoutError"), (1, message))


def own_name(run):
    """On each node its own name leads to 127.0.1.1, as Debian and Ubuntu like to set it up.

    torchrun finds the other node, but gloo publishes 127.0.1.1 as this node's address. Which of two
    ranks connects, and is refused, differs from run to run; the other one waits. Root cause:
    /etc/hosts. Correct it, or set GLOO_SOCKET_IFNAME to the interface (eth0 here).
    """
    for name, address in run.hosts.names().items():
        file = run.hosts.etc_hosts(name)
        file.write_text(file.read_text().replace(f"\n{address} {name}\n", f"\n127.0.1.1 {name}\n"))
    run.start_both(*SHORT)
    refused = r"Connection refused, remote=\[127.0.1.1\]"
    run.wait_for_line(refused)
    return run.result((1, f"{refused}|Connect timeout"), (1, f"{refused}|{STORE_LOST}"))


def no_interface(run):
    """GLOO_SOCKET_IFNAME on node 1 is an interface that it does not have.

    Root cause: the node that names the interface; the other one waits --timeout for its address.
    """
    run.start(0, *SHORT)
    run.start(1, *SHORT, env={"GLOO_SOCKET_IFNAME": "eth7"})
    return run.result((1, r"wait timeout after \d+ms"), (1, "Unable to find address for: eth7"))


def two_and_three(run):
    """--nnodes 2 on node 0, then --nnodes 3 on node 1.

    No message names the root cause: compare the commands. Both wait for a third node until
    join_timeout (here 5, by default 600). The last one to join decides: in the other order the two
    of them train, and the first line of train.py prints how many nodes there are.
    """
    run.start(0, torchrun=SHORT_RENDEZVOUS)
    run.wait_until(run.listens)
    run.start(1, torchrun=SHORT_RENDEZVOUS, nnodes=3)
    return run.result((1, "RendezvousTimeoutError"), (1, NO_RENDEZVOUS))


def two_jobs(run):
    """A second job is started with the endpoint of a running one.

    It waits without a message, and fails when the first one ends and closes the store. Give each
    job a port of its own.
    """
    run.train_an_epoch("-e", "12")
    run.start_both()
    return run.result((0, "epoch 12/12"), (0, ""), (1, STORE_LOST), (1, STORE_LOST))


CASES = (killed, raises, exits, stopped, hangs)  # a process fails
CASES += (cut_off, head_lost)  # the network fails
CASES += (wrong_name, wrong_port, own_name, no_interface, two_and_three, two_jobs)  # a setting
CASES = {case.__name__: case for case in CASES}


# ------------------------------------------------------------------- running them


def main() -> int:
    args = parse()
    processes.exit_on_signals()
    results = {}
    with tempfile.TemporaryDirectory(prefix="failures-") as data:
        draw_digits.draw_data_set(Path(data, "MNIST/raw"), 1200, 303)
        for name in args.cases:
            logs = args.logs and args.logs / name
            results[name] = run_case(CASES[name], args.net, data, logs)
            print(table({name: results[name]}), lesson(name, results[name]), sep="\n", flush=True)
            if args.json:
                write(args.json, results)
    return 0 if all(result["ok"] for result in results.values()) else 1


def run_case(case, net: str, data: str, logs: Path | None = None) -> dict:
    """Run a case on two new nodes, which are removed afterwards -> its result.

    logs: a folder for what each torchrun and its rank printed.
    """
    net = hosts.hosts_for_a_while(2, net)
    with tempfile.TemporaryDirectory(prefix="failures-") as folder, net as made:
        run = two_nodes.TwoNodes(Path(folder), made, data)
        try:
            return case(run)
        except TimeoutError as error:
            return {"nodes": [], "left": [], "ok": False, "last": str(error)}
        finally:
            run.kill()
            if logs:
                keep_logs(run, logs)


def keep_logs(run, folder: Path) -> None:
    """Copy what each torchrun printed to node0.log, node1.log, job2-node0.log and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, torchrun in enumerate(run.torchruns):
        job = f"job{number // 2 + 1}-" if number >= 2 else ""
        (folder / f"{job}{torchrun.node.replace('host', 'node')}.log").write_text(torchrun.output())


def lesson(name: str, result: dict) -> str:
    """What a case leaves on the disk, and the second part of its docstring: the root cause."""
    told = inspect.getdoc(CASES[name]).partition("\n\n")[2]
    not_ok = "" if result["ok"] else f"NOT AS EXPECTED. All output:\n{result['last']}\n"
    return f"files left: {', '.join(result['left']) or 'none'}\n{told}\n{not_ok}"


def table(results: dict[str, dict]) -> str:
    """The results as Markdown, a row for each torchrun."""
    rows = []
    for name, result in results.items():
        label = f"{name}: {CASES[name].__doc__.partition(chr(10))[0]}"
        for row in result["nodes"]:
            waits = row["seconds"] is None
            after = "still waits" if waits else f"{row['seconds']:.1f} s"
            message = f"`{row['message']}`" if row["message"] else ""
            rows.append([label, row["node"], after, "" if waits else row["code"], message])
            label = ""
    headers = ["what is broken", "node", "ends after", "exit code", "message"]
    return tabulate(rows, headers, "github", disable_numparse=True)


def write(path: Path, results: dict[str, dict]) -> None:
    about = f"{processes.device_name()}, {os.cpu_count()} cores, torch {version('torch')}"
    found = {"about": about, "timeout": two_nodes.TIMEOUT, "cases": results}
    path.write_text(json.dumps(found, indent=1))


def parse() -> argparse.Namespace:
    parser = hosts.Parser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    add("--json", type=Path, help="file for the results")
    add("--logs", type=Path, help="folder for the output of each node, as for ddp-doctor log")
    add("--net", default="failures", help="name of the set of nodes")
    args = parser.parse_args()
    args.cases = args.cases or list(CASES)
    for name in args.cases:
        if name not in CASES:
            hosts.fail(f"there is no case {name}; there are {', '.join(CASES)}")
    if reason := hosts.missing():
        hosts.fail(reason)
    return args


if __name__ == "__main__":
    hosts.run_main(main)

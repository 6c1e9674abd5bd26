"""What happens when something fails? Break a run of two hosts on purpose, and watch how it ends.

Each case makes two hosts (hosts.py), starts torchrun with train.py on both (resume.py, where a
snapshot is needed amid an epoch), breaks one thing, and tells for each host: after how many seconds
its torchrun ended, with which exit code, and the one line that says why; what is left on the disk;
who was guilty, and by what you would have known.

    sudo env "PATH=$PATH" python 05_multinode/rehearsal/failures.py   # some five minutes
    sudo env "PATH=$PATH" python 05_multinode/rehearsal/failures.py killed cut_off
    sudo env "PATH=$PATH" python 05_multinode/rehearsal/failures.py restart_rate

Without root the hosts are two torchruns on 127.0.0.1, and cases that need more are left out.
"""

import argparse
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
hosts = importlib.import_module("05_multinode.rehearsal.hosts")
rehearsal = importlib.import_module("05_multinode.rehearsal.common")

WAITS, RESUME = rehearsal.WAITS, rehearsal.RESUME
DONE = "milliseconds per step"  # the last line of a good run of train.py
RESUMED = r"[1-9]\d* step\(s\) done before"  # in the last line of resume.py
# How long a torchrun looks for the endpoint, and then for the other hosts: 60 s and 600 s if nobody
# says otherwise.
HASTE = ("--rdzv-conf", "read_timeout=3,join_timeout=5")
LOST = "The connection to the C10d store has failed"
NO_MEETING = f"{LOST}|Rendezvous(Timeout|Closed)Error"


# ------------------------------------------------------------------- the cases, each with its doc


def killed(bench):
    """Rank 1 is killed, as by a system that is out of memory.

    Guilty is the host whose torchrun names a signal. The other one hears of it from the kernel,
    which closes the connections of a process that dies.
    """
    bench.train()
    bench.breaks(lambda: os.kill(bench.pid(1), signal.SIGKILL))
    return bench.ends(
        (1, "Connection (closed|reset) by peer"), (1, r"Signal 9 \(SIGKILL\) received")
    )


def raises(bench):
    """Rank 1 raises an exception.

    Guilty is the host with a traceback that does not speak of connections, peers or timeouts.
    """
    bench.start_both(fault="raises 1")
    return bench.ends((1, "Connection (closed|reset) by peer"), (1, "OSError: an image is missing"))


def leaves(bench):
    """Rank 1 is done too early, and leaves with exit code 0.

    Guilty is the host whose torchrun ends with 0 while the others fail.
    """
    bench.start_both(fault="leaves 1")
    return bench.ends(
        (1, "Connection (closed|reset) by peer"), (0, "Error waiting on exit barrier")
    )


def head_leaves(bench):
    """Rank 0, on the head host, leaves with exit code 0.

    The same, but its torchrun has the store, and waits five minutes for the others to be done.
    """
    bench.start_both(fault="leaves 0")
    told = (0, "Error waiting on exit barrier"), (1, "Connection (closed|reset) by peer")
    return bench.ends(*told, limit=500)


def stopped(bench):
    """Rank 1 is frozen (SIGSTOP), as by a machine that swaps.

    Guilty is the host that does not say "Timed out waiting": who says so has waited for it. Its
    torchrun asks the rank to end, in vain, and kills it --shutdown-timeout seconds later (here 3,
    else 30).
    """
    bench.train(*bench.soon, torchrun=("--shutdown-timeout", "3"))
    bench.breaks(lambda: os.kill(bench.pid(1), signal.SIGSTOP))
    return bench.ends((1, r"Timed out waiting \d+ms"), (1, "forcefully exiting via 9"))


def sleeps(bench):
    """Rank 0, on the head host, hangs in an endless loop.

    Guilty is the host that says nothing, and there the rank without "Timed out waiting". Its
    torchrun waits for its rank as long as it lives, and nothing bounds that: end it yourself.
    """
    bench.start_both(*bench.soon, fault="sleeps 0")
    return bench.ends((WAITS, ""), (1, r"Timed out waiting \d+ms"))


def blinks(bench):
    """Host 1's cable is pulled, and back after a second: sooner than --timeout.

    Nobody notices: the kernel sends again what was lost, and the run ends as it would have.
    """
    bench.train("-e", "20")
    bench.breaks(lambda: bench.hosts.cut("host1"))
    time.sleep(1)
    bench.hosts.join("host1")
    return bench.ends((0, DONE), (0, ""))


def cut_off(bench):
    """Host 1's cable is pulled, and back after host 0 has given up.

    Both ranks give up after --timeout. Guilty is the host that the others cannot reach: see it by
    ping. Its torchrun hears nothing while the cable is out; now it finds nobody to come back to.
    """
    bench.train(*bench.soon)
    bench.breaks(lambda: bench.hosts.cut("host1"))
    bench.wait(lambda: bench.sides[0].ended)
    bench.hosts.join("host1")
    return bench.ends((1, r"Timed out waiting \d+ms"), (1, LOST))


def head_lost(bench, retries=5):
    """The head host, with the endpoint, is lost: its cable is pulled for good.

    The other rank gives up after --timeout, but its torchrun has a question under way to the
    endpoint, and waits until the kernel gives up sending it: a quarter of an hour, or some ten
    seconds with sysctl net.ipv4.tcp_retries2=5, as here.
    """
    for name in bench.hosts.names():
        bench.hosts.start(name, ["sysctl", "-qw", f"net.ipv4.tcp_retries2={retries}"]).wait()
    bench.train(*bench.soon)
    bench.breaks(lambda: bench.hosts.cut("host0"))
    return bench.ends((1, r"Timed out waiting \d+ms"), (1, LOST), limit=1500)


def head_lost_by_default(bench):
    """The same with the kernel's own setting, tcp_retries2=15."""
    return head_lost(bench, retries=15)


def wrong_name(bench):
    """The endpoint's name does not exist.

    Guilty is whoever says "cannot be retrieved": ask getent hosts NAME. torchrun looks for it for
    read_timeout seconds, up to twice (--rdzv-conf, here 3, else 60).
    """
    bench.start_both(endpoint=f"hots0:{bench.port}", torchrun=HASTE)
    told = r"network addresses of \(hots0, \d+\) cannot be retrieved"
    return bench.ends((1, told), (1, told))


def nobody_there(bench):
    """The endpoint is an address that no machine has.

    The last lines name it; addresses in those above may be garbage. Bounded as wrong_name.
    """
    bench.start_both(endpoint="10.5.0.9:29500", torchrun=HASTE)
    told = r"\(10.5.0.9, 29500\)"
    return bench.ends((1, told), (1, told))


def wrong_port(bench):
    """Host 1 has another port than host 0.

    Guilty is the host that cannot connect. The one that could waits join_timeout seconds for
    company (--rdzv-conf, here 5, else 600).
    """
    bench.torchrun(0, torchrun=HASTE)
    bench.torchrun(1, torchrun=HASTE, endpoint="host0:29501")
    told = r"timed out after \d+ms while trying to connect to \(host0, 29501\)"
    return bench.ends((1, "RendezvousTimeoutError"), (1, told))


def own_name(bench):
    """On each host its own name leads to 127.0.1.1, as Debian and Ubuntu like to set it up.

    torchrun finds the others, then gloo tells them to connect to 127.0.1.1. Chance decides which of
    two ranks tries, and is refused; the other one waits. Guilty is /etc/hosts: mend it, or set
    GLOO_SOCKET_IFNAME to the interface (eth0 here).
    """
    for name, address in bench.hosts.names().items():
        file = bench.hosts.etc_hosts(name)
        file.write_text(file.read_text().replace(f"\n{address} {name}\n", f"\n127.0.1.1 {name}\n"))
    bench.breaks(lambda: bench.start_both(*bench.soon))
    refused = r"Connection refused, remote=\[127.0.1.1\]"
    bench.wait_for(refused)
    return bench.ends((1, f"{refused}|Connect timeout"), (1, f"{refused}|{LOST}"))


def loopback(bench):
    """GLOO_SOCKET_IFNAME=lo on host 1 alone.

    No failure, by luck: of two ranks only one connects to the other, and here it is the one that
    nobody could have found. In another network it is the other one.
    """
    bench.torchrun(0, *bench.soon, "-e", "1")
    bench.torchrun(1, *bench.soon, "-e", "1", env={"GLOO_SOCKET_IFNAME": "lo"})
    return bench.ends((0, r"2 rank\(s\) on 2 node\(s\)"), (0, ""))


def no_interface(bench):
    """GLOO_SOCKET_IFNAME on host 1 is an interface that it does not have.

    Guilty is the host that names the interface; the other one waits --timeout for its address.
    """
    bench.torchrun(0, *bench.soon)
    bench.torchrun(1, *bench.soon, env={"GLOO_SOCKET_IFNAME": "eth7"})
    return bench.ends((1, r"wait timeout after \d+ms"), (1, "Unable to find address for: eth7"))


def two_and_three(bench):
    """--nnodes 2 on host 0, then --nnodes 3 on host 1.

    Nobody is named. Compare the lines: both wait for a third host until join_timeout (here 5, else
    600). Whoever comes last decides: in the other order the two of them train.
    """
    bench.torchrun(0, torchrun=HASTE)
    bench.wait(bench.listens)
    bench.breaks(lambda: bench.torchrun(1, torchrun=HASTE, nnodes=3))
    return bench.ends((1, "RendezvousTimeoutError"), (1, NO_MEETING))


def three_and_two(bench):
    """--nnodes 3 on host 0, then --nnodes 2 on host 1.

    Both train, on two hosts where one was told three. The first line says how many there are.
    """
    bench.torchrun(0, "-e", "1", nnodes=3)
    bench.wait(bench.listens)
    bench.breaks(lambda: bench.torchrun(1, "-e", "1"))
    return bench.ends((0, r"2 rank\(s\) on 2 node\(s\)"), (0, ""))


def unequal(bench):
    """--nproc-per-node 1 on host 0 and 2 on host 1.

    No failure: they are three ranks. The first line says so, and the batch has to divide by three.
    """
    bench.torchrun(0, "-e", "1")
    bench.torchrun(1, "-e", "1", nproc=2)
    return bench.ends((0, r"3 rank\(s\) on 2 node\(s\)"), (0, ""))


def two_jobs(bench):
    """A second job comes to an endpoint that has one.

    It waits without a word, and ends when the first one does and takes the store along. Give each
    job a port of its own.
    """
    bench.train("-e", "12")
    bench.breaks(lambda: bench.start_both())
    return bench.ends((0, DONE), (0, ""), (1, LOST), (1, LOST))


def full_disk(bench):
    """The disk of host 0 is full when the second snapshot is written.

    The run goes on; rank 0 says so in a line, and the snapshot before stays.
    """
    tiny = 'mount -t tmpfs -o size=400k none disk && "$@" && echo "left: $(ls disk)"'
    Path(bench.folder, "disk").mkdir()
    for number, before in enumerate((("sh", "-c", tiny, "sh"), ())):
        flags = ("-e", "3", "--snapshot", "disk/snapshot.pt")
        bench.torchrun(number, *flags, script=RESUME, before=before)
    result = bench.ends((0, r"no snapshot \(No space left on device\)"), (0, ""))
    result["left"] += [f"disk/{name}" for name in bench.sides[0].says("^left: (.*)")[1].split()]
    return result


def damaged(bench):
    """Both hosts lose their power, and half of the last snapshot is lost, too.

    Started again, resume.py refuses it by name and goes on from the one before. The two hosts share
    a disk here: whoever reads it first says so, and sets it aside.
    """
    flags = ("-e", "2", "--every", "5")
    # Asleep, rank 0 is not writing a snapshot just when it is killed.
    bench.start_both(*flags, fault="sleeps 0", script=RESUME)
    bench.wait(Path(bench.folder, "fault").exists)
    bench.kill()
    snapshot = Path(bench.folder, "snapshot.pt")
    os.truncate(snapshot, snapshot.stat().st_size // 2)
    bench.sides.clear()
    bench.breaks(lambda: bench.start_both(*flags, script=RESUME))
    refused = "refusing snapshot.pt: damaged"
    bench.wait_for(refused)
    bench.wait_for(RESUMED)
    return bench.ends((0, rf"{refused}|\Z"), (0, rf"{refused}|\Z"))


def restart(bench):
    """Rank 1 raises once; torchrun restarts all ranks (--max-restarts 1), and they resume.

    Only with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 can one rely on that: restart_rate counts.
    """
    try_restart(bench, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    return bench.ends((0, RESUMED), (0, ""))


def restart_rate(bench):
    """How often does a restart succeed, as it is and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1?"""
    good = {}
    for name, env in (("as it is", {}), ("with it", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})):
        good[name] = 0
        for number in range(bench.args.tries):
            bench.clear()
            try_restart(bench, env)
            good[name] += bench.ends((0, ""), (0, ""))["ok"]
            print(f"    {name}: {good[name]} of {number + 1}", flush=True)
    return {"sides": [], "left": [], "ok": True, "tries": bench.args.tries, "restarted": good}


def try_restart(bench, env):
    flags = (*bench.soon, "-e", "1", "--every", "5")
    once = ("--max-restarts", "1")
    bench.start_both(*flags, fault="raises 1 once", torchrun=once, env=env, script=RESUME)


DIE = (killed, raises, leaves, stopped, sleeps)
LOSE_HOSTS = (blinks, cut_off, head_lost)
DO_NOT_MEET = (wrong_name, nobody_there, wrong_port, own_name, loopback)
DO_NOT_MEET += (no_interface, two_and_three, three_and_two, unequal, two_jobs)
GO_ON = (full_disk, damaged, restart)
TAKE_MINUTES = (head_leaves, head_lost_by_default, restart_rate)  # and run only if they are named
ALL = (*DIE, *LOSE_HOSTS, *DO_NOT_MEET, *GO_ON, *TAKE_MINUTES)
CASES = {case.__name__: case for case in ALL}
IF_NAMED = [case.__name__ for case in TAKE_MINUTES]
NEEDS_HOSTS = ("blinks", "cut_off", "head_lost", "head_lost_by_default", "nobody_there")
NEEDS_HOSTS += ("wrong_port", "own_name", "loopback", "full_disk")


def main() -> int:
    args = parse()
    hosts.leave_when_told()
    with tempfile.TemporaryDirectory(prefix="failures-") as folder:
        if not args.data:
            args.data = Path(folder)
            draw = [sys.executable, rehearsal.ROOT / "tools/draw_digits.py", folder]
            draw += ["--train", "1200", "--test", "303"]
            subprocess.run(draw, check=True, stdout=subprocess.DEVNULL)
        return watch(args)


def watch(args: argparse.Namespace) -> int:
    """Run the cases, one after the other -> exit code, 0 if all went as expected."""
    results, fine = {}, True
    if out := [name for name in args.cases if name in NEEDS_HOSTS and not args.hosts]:
        print(f"left out without hosts ({hosts.missing() or '--no-hosts'}): {', '.join(out)}\n")
    for name in args.cases:
        if name in out:
            continue
        left = []
        with rehearsal.a_bench(args, left) as bench:
            results[name] = CASES[name](bench)
        print(report(name, results[name], left), flush=True)
        fine &= results[name]["ok"] and not left
        if args.json:
            write(args, results)
    print(table(results))
    return 0 if fine else 1


def report(name: str, result: dict, left: list[str]) -> str:
    what, _, why = CASES[name].__doc__.partition("\n\n")
    lines = [f"{name}: {what}"]
    for row in result["sides"]:
        end = f"ends after {row['seconds'] or 0:6.1f} s with exit code {row['code']}"
        end = f"{row['host']} {'still waits' if row['code'] == WAITS else end}"
        lines.append(f"    {end}: {row['says'] or 'no word of its own'}")
    lines.append(f"    what is left: {', '.join(result['left']) or 'nothing'}")
    lines += [f"    {line.strip()}" for line in why.strip().splitlines()]
    if not result["ok"]:
        lines += ["    THIS IS NOT WHAT WAS EXPECTED. What each of them said last:"]
        lines += [f"    {line}" for line in result["last"]]
    lines += [f"    LEFT BEHIND: {', '.join(left)}"] if left else []
    return "\n".join(lines) + "\n"


def table(results: dict[str, dict]) -> str:
    """The results as Markdown, a line for each torchrun."""
    lines = ["| what is broken | host | ends after | exit code | and says |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, result in results.items():
        label = f"{name}: {CASES[name].__doc__.partition(chr(10))[0]}"
        for row in result["sides"]:
            after = "still waits" if row["code"] == WAITS else f"{row['seconds']:.1f} s"
            code = "" if row["code"] == WAITS else row["code"]
            says = f"`{row['says']}`" if row["says"] else ""
            lines.append(f"| {label} | {row['host'][4:]} | {after} | {code} | {says} |")
            label = ""
    return "\n".join(lines)


def write(args: argparse.Namespace, results: dict[str, dict]) -> None:
    """Put the results into the file; those of other cases that it has stay."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    about = f"{(names or [platform.machine()])[0]}, {os.cpu_count()} cores"
    old = json.loads(args.json.read_text()) if args.json.exists() else {"cases": {}}
    cases = {name: (old["cases"] | results).get(name) for name in CASES}
    found = {"about": f"{about}, torch {metadata.version('torch')}", "timeout": args.timeout}
    found |= {"hosts": args.hosts, "cases": {name: case for name, case in cases.items() if case}}
    args.json.write_text(json.dumps(found, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = fail
    add, number = parser.add_argument, hosts.number
    add("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    add("--data", type=Path, help="holds MNIST/raw; 1,200 images are drawn if it is not given")
    add("--timeout", type=number(1, 600), default=5, help="seconds a rank waits for the others (5)")
    add("--tries", type=number(1, 1000), default=20, help="of restart_rate, each way (20)")
    add("--json", type=Path, help="file for the results")
    add("--no-hosts", action="store_true", help="two torchruns on 127.0.0.1, as without root")
    add("--net", default="failures", help="name of the set of hosts")
    args = parser.parse_args()
    if sys.platform != "linux":
        fail("processes are watched through /proc, and only Linux has that")
    hosts.Hosts(args.net)  # raises HostsError if the name will not do
    args.hosts = not args.no_hosts and hosts.missing() is None
    args.cases = args.cases or [name for name in CASES if name not in IF_NAMED]
    for name in args.cases:
        if name not in CASES:
            fail(f"there is no case {name}; there are {', '.join(CASES)}")
    if args.data and not Path(args.data, "MNIST/raw").is_dir():
        fail(f"--data {args.data}: there is no MNIST/raw in it")
    if args.json and not args.json.parent.is_dir():
        fail(f"--json {args.json}: there is no such folder")
    return args


def fail(message: str) -> None:
    print(f"failures: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except hosts.HostsError as error:
        fail(str(error))
    except TimeoutError as error:
        sys.exit(f"failures: {error}")
    except KeyboardInterrupt:
        print("\nfailures: interrupted", file=sys.stderr)
        sys.exit(130)

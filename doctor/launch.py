"""Runs the command with the watchers in its Python processes, and ends what it has started."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .record import HERE

# Python imports this at its start, because its folder is on PYTHONPATH. It lets torch be imported
# as always, and installs the watchers right after it. The environment's own one runs, too.
SITECUSTOMIZE = f"""import importlib.machinery, importlib.util, os, sys
def load(name, path, folder=None):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            def run_and_watch(module):
                run(module)
                try:
                    load("ddp_doctor", {os.path.join(HERE, "__init__.py")!r}, [{HERE!r}])
                    from ddp_doctor import watch
                    watch.install()
                except Exception as error:
                    print("doctor: nothing can be watched here:", repr(error), file=sys.stderr)
            spec.loader.exec_module = run_and_watch
        return spec
sys.path[:] = [p for p in sys.path if p != os.path.dirname(__file__)]
sys.meta_path.insert(0, Finder())
own = importlib.machinery.PathFinder.find_spec("sitecustomize")
if own is not None:
    load("sitecustomize", own.origin)
"""


@dataclass
class Run:
    """What a run of the command left: how it ended, and the events of each process."""

    code: int | None  # None: it was stopped
    end: str = ""  # "", "hang", "limit", "silent", "interrupt"
    nows: dict = field(default_factory=dict)  # where each process was, by pid
    processes: list = field(default_factory=list)  # [(events, now), ...]


def observe(command, patience, limit, cwd=None) -> Run:
    """Run the command with the watchers until it ends, hangs or takes longer than the limit."""
    folder = tempfile.mkdtemp(prefix="doctor-")
    try:
        Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "DDP_DOCTOR_FOLDER": folder}
        run = wait(subprocess.Popen(command, env=env, cwd=cwd), folder, patience, limit)
        run.processes = read(folder, run.nows)
        return run
    finally:
        end(started(folder))
        shutil.rmtree(folder, ignore_errors=True)


def wait(process, folder, patience, limit):
    start, seen, changed, longest = time.time(), None, time.time(), 0.0
    try:
        while process.poll() is None:
            time.sleep(0.2)
            nows = states(folder)
            if nows != seen:  # under NCCL a hang is known by this only: nobody gets on
                longest = max(longest, time.time() - changed)
                seen, changed = nows, time.time()
            stepping = any(now.get("steps", 0) > 2 for now in nows.values())
            if hangs(nows, patience):
                return Run(None, "hang", nows)
            if stepping and time.time() - changed > max(300, 20 * longest, 20 * patience):
                return Run(None, "silent", nows)
            if time.time() - start > limit:
                return Run(None, "limit", nows)
        return Run(process.returncode)
    except KeyboardInterrupt:
        return Run(None, "interrupt", states(folder))
    finally:
        if process.poll() is None:
            end([process.pid, *started(folder)])
            process.wait()


def states(folder):
    """{pid: where it is now} of the processes that have begun and are still there."""
    nows = {pid_of(path): now_of(path) for path in Path(folder).glob("*.now")}
    return {pid: now for pid, now in nows.items() if now and alive(pid)}


def now_of(path):
    return loaded(path.read_bytes().rstrip(b" \0"))


def loaded(text):
    try:
        return json.loads(text)
    except ValueError:  # it was just being written
        return {}


def alive(pid):
    return stat(pid)[0] != "Z" if os.path.isdir("/proc/self") else True


def stat(pid):
    """The fields of /proc/PID/stat from the state on; of a process that is gone: a zombie's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return ["Z", *["0"] * 50]


def hangs(nows, patience):
    """All ranks that are still there wait in a communication, and none computes."""
    waiting = [now for now in nows.values() if now.get("op") and "error" not in now]
    if not nows or len(waiting) < len(nows):
        return False
    joining = any(now["op"] == "init_process_group" for now in waiting)  # others may download
    if time.time() - max(now["time"] for now in waiting) < (10 if joining else 1) * patience:
        return False
    before = sum(map(processor_time, nows))
    time.sleep(1)
    return sum(map(processor_time, nows)) - before < 20  # hundredths of a second


def processor_time(pid):
    return sum(map(int, stat(pid)[11:13]))


def started(folder):
    """The processes that have our folder in their environment, whoever is their parent."""
    mark, found = f"DDP_DOCTOR_FOLDER={folder}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes() and alive(int(path.parent.name)):
                found.add(int(path.parent.name))
        except OSError:  # another user's, or gone
            pass
    if sys.platform != "linux":
        found = {pid_of(path) for path in Path(folder).glob("*.now")}
    return found - {os.getpid()}


def pid_of(path):
    return int(path.stem.rsplit("-", 1)[1])


def end(pids):
    """First the polite signal: a launcher ends its ranks, and waits for them."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        start = time.time()
        while any(map(alive, pids)) and time.time() - start < patience:
            time.sleep(0.1)


def read(folder, nows):
    processes = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        events = map(loaded, path.read_bytes().splitlines())  # the last may be cut off
        now = nows.get(pid_of(path)) or now_of(path.with_suffix(".now"))
        processes.append(([event for event in events if event], now))
    return processes

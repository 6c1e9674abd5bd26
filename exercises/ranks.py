"""Run `observe` of a check on real ranks (processes, gloo) in bounded time -> what each rank saw.

It is called once, or for each of the check's CASES. What it returns travels as plain data: nothing
of the reader's runs in the checker.

No bound is a time on the clock, because a busy machine must not change a verdict. A rank that is
done stays until all others are done. The ranks are ended in two cases:

- For IDLE seconds none of those that are left has used the processor, or wanted to: they wait for
  one another. (Some look now and then. They are ended after POLLS looks at which none wanted to.)
- One has used the processor for BUSY seconds, or has printed more than FLOOD bytes.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.util
import linecache
import multiprocessing
import numbers
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

import psutil
import torch
import torch.distributed as dist

IDLE = 2.0  # seconds
BUSY = 20.0  # seconds of processor time
FLOOD = 2_000_000  # bytes
BACK = '/check.py"'  # in the stack of a rank that is in a check
ANSWER = "task"  # the name of the reader's file as a module
POLLS = 600  # half a minute on an idle machine
SEED = 0  # of this run; `common.secret` draws from it
RUNS = psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP  # runs, or would if it were let
SIMPLE = {str: str, numbers.Integral: int, numbers.Real: float}  # what it is, what it becomes
PRELOADED = ["torch.distributed.nn", "torch._dynamo", "torch.optim", "exercises.ranks"]


@dataclass
class Rank:
    """How a rank ended, and what it saw."""

    number: int
    end: str = ""  # finished, raised, died, waits, computes, prints
    values: list = field(default_factory=list)  # for each case what its `observe` returned
    place: str = ""  # the line of the reader's file in which it was
    message: str = ""
    output: str = ""


def load(path: Path) -> ModuleType:
    """Import an answer by its path. SyntaxError and whatever it raises are the caller's."""
    spec = importlib.util.spec_from_file_location(ANSWER, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[ANSWER] = module  # so that its functions can be pickled
    spec.loader.exec_module(module)
    return module


def load_check(folder: Path) -> ModuleType:
    """Import check.py as part of its package, so that ranks can send one another its classes."""
    return importlib.import_module(f"{__package__}.{folder.name}.check")


def plain(value):
    """The same value without the reader's classes: a NamedTuple is a tuple, others are text.

    Bytes become text as well, because torch.load(weights_only=True) refuses empty ones.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if torch.is_tensor(value):
        return value.detach().as_subclass(torch.Tensor)
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return kind(map(plain, value))
    for kind, made in SIMPLE.items():
        if isinstance(value, kind):
            return made(value)
    return repr(value)


def run(file: Path, exercise: Path, world_size: int, seed: int = 0) -> list[Rank]:
    """Run `observe` of the exercise with this file on so many ranks -> how each ended."""
    adopt_orphans()
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":  # PyTorch is imported once, then forked
        context.set_forkserver_preload(PRELOADED)
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # of ranks we end
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the checker's alone
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, handler)
    before = {child.pid for child in psutil.Process().children()}  # the server is among them
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        arguments = (world_size, Path(folder), file, exercise, seed)
        each = [(n, *arguments) for n in range(world_size)]
        processes = [context.Process(target=run_rank, args=one) for one in each]
        try:
            for process in processes:
                process.start()
            reasons = watch(processes, Path(folder))
        finally:
            for process in processes:
                if process.pid:
                    kill(process.pid)
                    process.join()
            left = psutil.Process().children(recursive=True)
            # These are of a rank that died, or one that was just starting.
            orphans = [child for child in left if child.pid not in before]
            for child in orphans:
                kill(child.pid)
            psutil.wait_procs(orphans, timeout=10)  # A signal is sent before the process is gone.
        return [describe(n, Path(folder), file, reasons.get(n)) for n in range(world_size)]


# ---------------------------------------------------------------- in a rank


def run_rank(
    rank: int, world_size: int, folder: Path, file: Path, exercise: Path, seed: int
) -> None:
    if not multiprocessing.parent_process().is_alive():
        sys.exit(1)  # the checker was interrupted while PyTorch was imported for this rank
    threading.Thread(target=end_with_the_checker, daemon=True).start()
    if sys.platform != "win32":
        os.setsid()  # what the reader's code starts is ended with it,
        adopt_orphans()  # even if that calls setsid, too
        faulthandler.register(signal.SIGUSR1, file=open(folder / f"{rank}.stack", "w"))
    output = os.open(folder / f"{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
    os.chdir(folder)
    global SEED
    SEED = seed
    result = {}
    try:
        result["values"] = plain(observe(rank, world_size, folder, file, exercise))
    except BaseException as error:  # SystemExit, too: the rank has left
        frames = traceback.extract_tb(error.__traceback__)
        place = line(file, [frame.lineno for frame in frames if frame.filename == str(file)])
        result |= {"error": f"{type(error).__name__}: {error}".strip(": "), "place": place}
    part = folder / f"{rank}.part"
    torch.save(result, part)
    part.rename(folder / f"{rank}.done")
    if "error" in result:  # after that: the checker ends all ranks as soon as it sees this file
        (folder / f"{rank}.failed").touch()
    time.sleep(3600)  # a rank that ends closes its connections, and the others would fail by that


def end_with_the_checker() -> None:
    """No rank outlives the checker, not even if that is killed."""
    multiprocessing.parent_process().join()
    kill(os.getpid())


def adopt_orphans() -> None:
    """From now on, what a child has started becomes our child when that child ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def observe(rank: int, world_size: int, folder: Path, file: Path, exercise: Path) -> list:
    torch.set_num_threads(1)
    torch.manual_seed(1000 + rank)
    check = load_check(exercise)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    mine = load(file)
    return [check.observe(mine, *case) for case in getattr(check, "CASES", [()])]


def line(file: Path, numbers: list) -> str:
    """The last of these lines of the reader's file, or nothing."""
    if not numbers:
        return ""
    linecache.checkcache(str(file))
    return f"line {numbers[-1]}: {linecache.getline(str(file), int(numbers[-1])).strip()}"


# ---------------------------------------------------------------- in the checker


def watch(processes: list, folder: Path) -> dict[int, str]:
    """Wait until all ranks are done -> {rank: why it has to be ended}, empty if all are."""
    used = {}
    since = time.monotonic()
    looks = []
    polls = 0
    while True:
        left = [n for n in range(len(processes)) if not (folder / f"{n}.done").exists()]
        if not left:
            return {}
        alive = [n for n in left if processes[n].is_alive()]
        if len(alive) < len(left) or any(folder.glob("*.failed")):
            return {n: "waits" for n in alive}
        for out in folder.glob("*.out"):
            if out.stat().st_size > FLOOD:
                return dict.fromkeys(alive, "waits") | {int(out.stem): "prints"}
        now = {}
        wanted = False
        for n in left:
            now[n], runs = seconds_used(processes[n].pid)
            wanted |= runs
        if busy := [n for n in left if now[n] > BUSY]:
            return dict.fromkeys(alive, "waits") | stacks(busy, processes, folder, "computes")
        if now.keys() != used.keys() or any(now[n] - used[n] > 0.02 for n in now):
            used = now
            since = time.monotonic()
            looks = []
        looks.append(wanted)  # to compute: on a busy machine a rank may have to wait for that
        polls += psutil.LINUX and not wanted
        if polls > POLLS:
            return stacks(left, processes, folder, "waits")
        if time.monotonic() - since > IDLE:
            if sum(looks) < len(looks) / 2:
                return stacks(left, processes, folder, "waits")
            since = time.monotonic()
            looks = []
        time.sleep(0.05)


def seconds_used(pid: int) -> tuple[float, bool]:
    """Processor seconds of a process and of all that it has started; does one want more now?"""
    total = 0.0
    runs = False
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                total += times.user + times.system
                runs |= psutil.LINUX and member.status() in RUNS
    return total, runs


def stacks(ranks: list[int], processes: list, folder: Path, reason: str) -> dict[int, str]:
    """Let the ranks write down where they are; a process that is stopped or gone does not."""
    if sys.platform != "win32":
        for n in ranks:
            with contextlib.suppress(OSError):
                os.kill(processes[n].pid, signal.SIGUSR1)
        end = time.monotonic() + IDLE
        files = [folder / f"{n}.stack" for n in ranks]
        while time.monotonic() < end and not all(f.exists() and f.stat().st_size for f in files):
            time.sleep(0.05)
    return dict.fromkeys(ranks, reason)


def kill(pid: int) -> None:
    """End a rank and all that it has started, those first: their children become its own."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for _ in range(1000):
            if all([ended(child) for child in process.children(recursive=True)]):
                break
        process.kill()
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def ended(process: psutil.Process) -> bool:
    """Was it at its end before this call, which ends it?"""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            return False
    return True


def describe(number: int, folder: Path, file: Path, reason: str | None) -> Rank:
    """What a rank has left in the folder."""
    rank = Rank(number, reason or "died")
    if (out := folder / f"{number}.out").exists():
        rank.output = out.read_bytes()[-2000:].decode(errors="replace")
    done = folder / f"{number}.done"
    if reason is None and done.exists():  # with a reason, it may have failed while all were ended
        try:
            result = torch.load(done, weights_only=True)
        except Exception as error:  # any, because the reader's file decides what was saved
            why = str(error).splitlines()[0]
            result = {"error": f"what it has returned cannot be read by the checker: {why}"}
        rank.end = "raised" if "error" in result else "finished"
        rank.values = result.get("values", [])
        rank.message = result.get("error", "")
        rank.place = result.get("place", "")
    elif (stack := folder / f"{number}.stack").exists():
        pattern = rf'File "{re.escape(str(file))}", line (\d+)'
        frames = stack.read_text()
        rank.place = line(file, re.findall(pattern, frames)[:1])
        if BACK in frames and not rank.place:
            rank.place = "the checker, because it has returned from your function"
    return rank


# ---------------------------------------------------------------- in words

STUB = "NotImplementedError: "
YOURS = "is yours to write"  # what a part that is to be written raises
RENAMED = re.compile(rf"AttributeError: module '{ANSWER}' has no attribute '(\w+)'")


def failure(seen: list[Rank]) -> str | None:
    """What went wrong if not all ranks came to their end: the cause, not a rank that waited."""
    ends = ["died", "prints", "computes", "raised"]  # the cause first: others may fail by it
    for rank in sorted(seen, key=lambda rank: [*ends, rank.end].index(rank.end)):
        place = f" in {rank.place}" if rank.place else ""
        if rank.end == "died":
            return f"the process of rank {rank.number} ended by itself{tail(rank)}"
        if rank.end == "prints":
            return f"rank {rank.number} printed more than {FLOOD:,} bytes: an endless loop?"
        if rank.end == "computes":
            spent = f"{BUSY:.0f} s of processor time"
            return f"rank {rank.number} was still computing after {spent} (an endless loop?){place}"
        if rank.message.startswith(STUB) and rank.message.endswith(YOURS):
            return rank.message.removeprefix(STUB)
        if name := RENAMED.match(rank.message):
            return f"the file has no `{name[1]}` any more: keep the name `{name[1]}`"
        if rank.end == "raised":
            return f"rank {rank.number} failed{place}\n{rank.message}{tail(rank)}"
    if all(rank.end == "finished" for rank in seen):
        return None
    text = "it hangs:"
    for rank in seen:
        if rank.end == "finished":
            text += f"\nrank {rank.number} has finished"
        else:
            text += f"\nrank {rank.number} waits in {rank.place or 'code outside your file'}"
    return text


def tail(rank: Rank) -> str:
    """The last lines that a rank has printed."""
    return "".join(f"\n  it printed: {text}" for text in rank.output.strip().splitlines()[-3:])

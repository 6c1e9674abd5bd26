"""Run the cases under the doctor: judge_cases.py [--innocents] [--short-N] [parts of names]

PyTorch is imported and the watchers are installed once; each rank is a fork of that process. A case
takes two seconds instead of fifteen. What the launcher does otherwise is tried in test_doctor.py.
One line of JSON per case goes to the standard output, and the score to the standard error.
"""

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # DDP does it: here once, and not in each fork
import torch.distributed as dist
import torch.distributed.nn
import torch.multiprocessing as mp

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cases  # noqa: E402
from ddp_doctor.check.judges import diagnose  # noqa: E402
from ddp_doctor.check.source import lines_of, tree_of  # noqa: E402
from ddp_doctor.run import launch  # noqa: E402
from ddp_doctor.run.events import read  # noqa: E402
from ddp_doctor.run.facts import facts  # noqa: E402
from ddp_doctor.run.kept import put_back  # noqa: E402
from ddp_doctor.run.run import build  # noqa: E402
from ddp_doctor.watch import install  # noqa: E402
from ddp_doctor.watch.note import PROCESS  # noqa: E402

PATIENCE = 3  # seconds in which all ranks wait: a hang
LONGEST = 60  # seconds, a bound


@dataclass
class Outcome:
    """How a case ended, and what its processes said."""

    code: int | None
    end: str  # ended, enough, hang, limit
    processes: list

    @property
    def word(self):
        """As the options of a case say it."""
        if self.end in ("hang", "limit"):
            return "hangs"
        return "fails" if self.code else "ends"


def main(words):
    for word in words:
        if word.startswith("--short-"):
            os.environ["DDP_DOCTOR_SHORT"] = word.removeprefix("--short-")
    install.install()
    innocent = "--innocents" in words
    words = [word for word in words if not word.startswith("-")]
    lines = []
    for case in cases.innocents() if innocent else cases.mutants():
        if "launched" in case.options:
            continue
        if words and not any(word in case.name for word in words):
            continue
        line = judged(case, innocent)
        print(json.dumps(line), flush=True)
        lines.append(line)
    print(score(lines), file=sys.stderr)


def judged(case, innocent=False):
    """-> what is known of a case after it ran, for a line of JSON."""
    started = time.monotonic()
    outcome = run(case)
    alone = {}
    if "alone" in case.options:
        one = run(case, ranks=1)
        alone = facts(build(one.code, one.end, one.processes))
    found, failed = diagnosed(case, build(outcome.code, outcome.end, outcome.processes, alone))
    labels = [] if innocent else case.findings
    named = [one for one in found if one.key in labels and fits(case, one)]
    expected = case.options & {"fails", "hangs", "any"} or {"ends"}
    return {
        "name": case.name,
        "seconds": round(time.monotonic() - started, 1),
        "ends_as_it_says": outcome.word in expected or "any" in expected,
        "labels": labels,
        "named": bool(named),
        "missed": "missed" in case.options,
        "findings": [(one.severity, one.key, one.at, one.seen, one.comes_from) for one in found],
        "failed": failed,  # watchers and judges
    }


def diagnosed(case, run):
    """The judges read the script, which they find in the folder in which it ran."""
    tree_of.cache_clear()
    lines_of.cache_clear()
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(case.source)
        os.chdir(folder)
        try:
            return diagnose(run)
        finally:
            os.chdir(before)


def fits(case, finding):
    """Has the finding the severity and the line that the case asks for, if it does?"""
    severities = case.options & {"wrong", "check"}
    if severities and finding.severity not in severities:
        return False
    for kind, found in (("line", finding.at), ("from", finding.comes_from)):
        line = case.line(kind)
        if line is not None and not found.endswith(f":{line}"):
            return False
    return True


def score(lines):
    """How many of the mistakes are named, and how many of the findings are those mistakes."""
    mutants = [line for line in lines if line["labels"]]
    named = sum(line["named"] for line in mutants)
    text = f"{len(lines)} scripts; recall: {named} of {len(mutants)} mistakes named"
    for severity in ("wrong", "check"):
        count = 0
        right = 0
        for line in lines:
            for finding in line["findings"]:
                if finding[0] == severity:
                    count += 1
                    right += finding[1] in line["labels"]
        text += f"; {severity}: {right} of {count} findings are the mistake"
    return text


# ------------------------------------------------------------------ run a case


def run(case, ranks=None):
    spawned = "mp.spawn" in case.source
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(case.source)
        if "twice" in case.options:
            run_ranks(folder, case.ranks(), spawned, watched=False)
        return run_ranks(folder, ranks or case.ranks(), spawned)


def run_ranks(folder, size, spawned, watched=True):
    """As launch.observe() does it, with forks of this process."""
    seen = Path(tempfile.mkdtemp(prefix="ddp-doctor-"))
    pids = []
    for rank in range(1 if spawned else size):
        pids.append(fork(rank, size, folder, seen, spawned, watched))
    codes = {}
    end = wait(pids, codes, seen, watched)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if pid not in codes:
            os.waitpid(pid, 0)
    processes = [read(file) for file in sorted(seen.glob("*.jsonl"))]
    put_back(seen)
    shutil.rmtree(seen)
    code = max(map(abs, codes.values())) if end == "ended" else None
    return Outcome(code, end, processes)


def wait(pids, codes, seen, watched):
    """Fill the exit codes, until all have ended, one has failed, or none goes on."""
    started = time.monotonic()
    while time.monotonic() - started < LONGEST:
        time.sleep(0.05)
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) == len(pids) or any(codes.values()):
            return "ended"
        if watched and launch.has_enough(seen, PATIENCE):
            return "enough"
        if watched and launch.hangs(seen, PATIENCE):
            return "hang"
    return "limit"


def fork(rank, size, folder, seen, spawned, watched):
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(folder)
    os.environ["DDP_DOCTOR_FOLDER"] = str(seen)
    os.environ["DDP_DOCTOR_STARTED"] = str(time.time())
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.argv = ["train.py"]
    PROCESS.over = not watched
    PROCESS.forked = spawned  # the parent of ranks is none
    if spawned:
        mp.spawn = lambda *args, **more: mp.start_processes(*args, **more, start_method="fork")
    else:
        join(rank, size, seen)
    code = 1
    try:
        runpy.run_path("train.py", run_name="__main__")
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        install.goodbye()
        os._exit(code)


def join(rank, size, seen):
    """As torchrun would have it, with a store in a file instead of a port."""
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(number) for name, number in names.items()}
    store = dist.FileStore(f"{seen}/store", size)
    init = dist.init_process_group

    def init_process_group(*args, **more):
        more = {name: value for name, value in more.items() if name != "init_method"}
        more |= {"store": store, "rank": rank, "world_size": size}
        return init(*args, **more)

    dist.init_process_group = init_process_group


if __name__ == "__main__":
    main(sys.argv[1:])

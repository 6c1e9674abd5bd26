"""Run the cases under the doctor: python tests/doctor/judge_cases.py [--innocents] [parts of names]

PyTorch is imported and the watchers are installed once; each rank is a fork of that process. A case
takes two seconds instead of fifteen. What the launcher does otherwise is tried in test_doctor.py.
"""

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch._dynamo  # DDP does it: here once, and not in each fork
import torch.distributed as dist
import torch.distributed.nn
import torch.multiprocessing as mp

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "doctor")]

import cases  # noqa: E402
from ddp_doctor import launch, watch  # noqa: E402
from ddp_doctor.__main__ import diagnose  # noqa: E402
from ddp_doctor.case import Case  # noqa: E402
from ddp_doctor.judge_run import facts  # noqa: E402
from ddp_doctor.record import OUT  # noqa: E402

PATIENCE = 3  # seconds in which all ranks wait: a hang
LONGEST = 60  # seconds, a bound


def main(words):
    watch.install()
    innocent = "--innocents" in words
    words = [word for word in words if not word.startswith("-")]
    lines = []
    for case in cases.innocents() if innocent else cases.mutants():
        if "launched" not in case.options and (not words or any(w in case.name for w in words)):
            started = time.monotonic()
            end, found, failed = judged(case)
            line = {"name": case.name, "seconds": round(time.monotonic() - started, 1)}
            line["ends_as_it_says"] = end in (case.options & {"fails", "hangs"} or {"ends"})
            line["ends_as_it_says"] |= "any" in case.options
            line["labels"] = [] if innocent else case.findings
            line["named"] = any(one.key in line["labels"] for one in found)
            line["missed"] = "missed" in case.options
            line["findings"] = [(one.severity, one.key, one.at, one.seen) for one in found]
            line["failed"] = failed  # watchers and judges
            print(json.dumps(line), flush=True)
            lines.append(line)
    print(score(lines), file=sys.stderr)


def score(lines):
    """How many of the mistakes are named, and how many of the findings are those mistakes."""
    mutants = [line for line in lines if line["labels"]]
    named = sum(line["named"] for line in mutants)
    text = f"{len(lines)} scripts; recall: {named} of {len(mutants)} mistakes named"
    for severity in ("wrong", "check"):
        own = [(one[1], line) for line in lines for one in line["findings"] if one[0] == severity]
        right = sum(key in line["labels"] for key, line in own)
        text += f"; {severity}: {right} of {len(own)} findings are the mistake"
    return text


def judged(case):
    """-> how it ended, what the doctor says of it, and what of the doctor failed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(case.source)
        alone = {}
        if "twice" in case.options:
            run(folder, case.ranks(), spawned(case), watched=False)
        if "alone" in case.options:
            copy = shutil.copytree(folder, Path(folder, "copy"))
            alone = facts(Case(run(copy, 1, spawned(case))))
        judged_case = Case(run(folder, case.ranks(), spawned(case)))
        judged_case.alone = alone
        ended = "fails" if judged_case.run.code else "hangs" if judged_case.run.end else "ends"
        return ended, diagnose(judged_case), judged_case.failed


def spawned(case):
    return "mp.spawn" in case.source


def run(folder, size, spawned, watched=True):
    """-> launch.Run, as doctor.launch.observe() gives it."""
    seen = tempfile.mkdtemp(prefix="ddp-doctor-")
    pids = [
        fork(rank, size, folder, seen, spawned, watched) for rank in range(1 if spawned else size)
    ]
    codes, nows, end, started = {}, {}, "", time.monotonic()
    while len(codes) < len(pids) and not end and not any(codes.values()):
        time.sleep(0.05)
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        now = launch.states(seen)
        if watched and now and launch.hangs(now, PATIENCE):
            end, nows = "hang", now
        elif time.monotonic() - started > LONGEST:
            end, nows = "limit", now
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if pid not in codes:
            os.waitpid(pid, 0)
    result = launch.Run(None if end else max(map(abs, codes.values())), end, nows)
    result.processes = launch.read(seen, nows)
    shutil.rmtree(seen)
    return result


def fork(rank, size, folder, seen, spawned, watched):
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(folder)
    os.environ["DDP_DOCTOR_FOLDER"] = seen
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.argv = ["train.py"]
    OUT.ended, OUT.forked = not watched, spawned
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
        watch.goodbye()
        os._exit(code)


def join(rank, size, seen):
    """As torchrun would have it, with a store in a file instead of a port."""
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(number) for name, number in names.items()}
    store, init = dist.FileStore(f"{seen}/store", size), dist.init_process_group

    def init_process_group(*args, **more):
        more = {name: value for name, value in more.items() if name != "init_method"}
        return init(*args, **{**more, "store": store, "rank": rank, "world_size": size})

    dist.init_process_group = init_process_group


if __name__ == "__main__":
    main(sys.argv[1:])

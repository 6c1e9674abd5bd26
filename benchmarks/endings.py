"""Do runs end as they should? Many runs under load, and ranks that fail while others are frozen.

gloo's threads may outlive a process group if something still holds it. A rank that was done could
then abort at exit (exit code -6 or 134), and a rank that raised could hang in place of reporting.
Before the stages ended their groups in the order in which they do now, it was one run in four to
one in fourteen, and 7 of 48 trials; docs/backends.md explains the cause.

    python -m benchmarks.endings                       # sixty runs and 48 trials: ten minutes
    python -m benchmarks.endings --runs 9 --trials 8
"""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch.multiprocessing as mp
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks import common
from compare import free_port

ROOT = common.ROOT
FLAGS = "-e 1 -b 24 --lr 0.02 --device cpu"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEP = 10  # before which rank 0 is frozen
PATIENCE = 60  # seconds within which the other rank should have raised, after 3 s, and ended


def main():
    from tools.draw_digits import draw_data_set  # not on the ranks, which can do without

    parser = common.flags(__doc__)
    parser.add_argument("--runs", type=int, default=60, help="of stages 3, 4 and 5 in turns (60)")
    parser.add_argument("--trials", type=int, default=48, help="with a rank that raises (48)")
    parser.add_argument("--at-once", type=int, default=4, help="runs and trials at a time (4)")
    args = common.parse(parser, runs=0, trials=0, at_once=1)
    with tempfile.TemporaryDirectory() as folder:
        draw_data_set(Path(folder, "MNIST", "raw"), 1200, 303)
        with ThreadPoolExecutor(args.at_once) as pool:
            try:
                codes = Counter(pool.map(lambda n: run(n, Path(folder)), range(args.runs)))
                ends = Counter(pool.map(lambda _: trial(Path(folder)), range(args.trials)))
            except BaseException:  # Ctrl-C or SIGTERM: the pool would wait for what runs
                common.kill_family(os.getpid())
                raise
    print(f"{codes[0]} of {args.runs} runs ended with exit code 0 ({args.at_once} at a time)")
    print(f"{ends['hung']} of {args.trials} ranks that raised hung; all ends: {dict(ends)}")
    if args.results:
        results = {"exit_codes": codes, "ends": ends, "about": common.about()}
        common.write_json(args.results / "endings.json", results)
    return int(codes[0] < args.runs or ends["raised"] < args.trials)


def run(number, folder):
    """Run stage 3, 4 or 5 on two ranks -> the first exit code that is not 0, or 0."""
    flags = f"{FLAGS} --data {folder} --record {folder}/{number} --checkpoint {folder}/{number}.pt"
    if number % 3 == 0:
        commands = [[sys.executable, ROOT / "03_ddp_spawn/train.py"]]
    elif number % 3 == 1:
        launch = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
        commands = [[*launch, ROOT / "04_ddp_torchrun/train.py"]]
    else:
        launch = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
        launch += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        commands = [[*launch, ROOT / "05_multinode/train.py"]] * 2
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([*map(str, c), *shlex.split(flags)], **quiet) for c in commands]
    return next((code for code in [process.wait() for process in processes] if code), 0)


def trial(folder):
    """Two ranks of stage 3. Rank 0 freezes, rank 1 waits for it, and raises -> how rank 1 ends."""
    with tempfile.TemporaryDirectory() as meeting:
        ranks = mp.spawn(rank_of_trial, (Path(meeting), folder), nprocs=2, join=False).processes
        while not Path(meeting, "frozen").exists() and ranks[1].is_alive():
            time.sleep(0.05)
        ranks[1].join(PATIENCE)
        end = "hung" if ranks[1].is_alive() else "raised" if ranks[1].exitcode == 1 else "other"
        for process in ranks:
            process.kill()
            process.join()
    return end


def rank_of_trial(rank, meeting, folder):
    """A rank of stage 3; rank 0 freezes before the optimizer's tenth step."""
    common.end_with_parent()
    stage3 = importlib.import_module("03_ddp_spawn.train")
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.argv[1:] = shlex.split(f"{FLAGS} --data {folder} --record {folder} --checkpoint {folder}/t")
    args = stage3.parse(stage3.base_parser())
    args.amp, args.timeout, args.sync_batchnorm = "off", 3, False
    steps = iter(range(1, 10**6))

    def before_step(*_):
        if next(steps) == STEP and rank == 0:
            Path(meeting, "frozen").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    register_optimizer_step_pre_hook(before_step)
    stage3.worker(rank, f"file://{meeting}/ranks", 2, args)


if __name__ == "__main__":
    sys.exit(main())

"""Record a rank that is slow, dies or leaves, and those that wait for it.

Each rank writes a line to a file for whatever it does, so a killed rank's notes are there, too.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from benchmarks import common
from benchmarks.recorders.parts import assemble, now, spans

RANKS = 4
CASES = SLOW, DIES, LEAVES = ("slow rank", "a rank dies", "a rank leaves early")
IMAGES = 60  # per rank: steps that can be seen next to the timeout
WRONG_RANKS = {SLOW: 2, DIES: 3, LEAVES: 1}  # not the same in all: readers guess it
BATCHES, SLOWER, TIMEOUT = 4, 0.3, 2  # the last two in seconds
NO_LAUNCHER = "No launcher ends the ranks that wait, as torchrun and mp.spawn do."
NOTES = {
    SLOW: "In every step rank {} starts 300 ms late.",
    DIES: f"Rank {{}} gets SIGKILL during step 3. {NO_LAUNCHER}",
    LEAVES: f"Rank {{}} has 3 batches, the others 4; the timeout is 2 s. {NO_LAUNCHER}",
}
PATIENCE = 120  # seconds from the start of the ranks to the end of the last


def record_failures() -> list[dict]:
    return [record_failure(case, RANKS) for case in CASES]


def record_failure(case: str, ranks: int) -> dict:
    """Start ranks of which one is slow, dies or leaves, and watch how each of them ends."""
    spawn = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        given = [(rank, ranks, folder, case) for rank in range(ranks)]
        processes = [spawn.Process(target=run_rank, args=args, daemon=True) for args in given]
        try:
            for process in processes:
                process.start()
            with ThreadPoolExecutor(ranks) as threads:
                exits = list(threads.map(end_of, processes))
        finally:
            for process in processes:
                if process.pid:
                    process.kill()
                    process.join()
        logs = [Path(folder, f"rank-{rank}.jsonl").read_text() for rank in range(ranks)]
    notes = [[json.loads(line) for line in log.splitlines()] for log in logs]
    end = max(at for at, _ in exits)
    return assemble(
        "failure",
        f"{case.capitalize()}: {ranks} ranks",
        {"case": case, "ranks": ranks},
        NOTES[case].format(wrong_rank(case, ranks)),
        [with_exit(own, *ended, end) for own, ended in zip(notes, exits)],
    )


def wrong_rank(case: str, ranks: int) -> int:
    """The rank that is slow, dies or leaves; of fewer ranks the last one."""
    return min(WRONG_RANKS[case], ranks - 1)


def end_of(process: mp.Process) -> tuple[int, int]:
    """Wait until a rank has ended -> when, and its exit code."""
    process.join(PATIENCE)
    if process.exitcode is None:
        sys.exit(f"record: {process.name} has not ended in {PATIENCE} s")
    return now(), process.exitcode


def with_exit(notes: list[dict], at: int, code: int, end: int) -> dict:
    """A rank's notes and how its process ended -> its spans and marks.

    Of a rank that has done all its steps the end is not shown.
    """
    turns = [(note["at"], note["turn"], note["text"]) for note in notes if "turn" in note]
    marks = [note for note in notes if "what" in note]
    if turns[-1][1] == "done":
        return {"spans": spans(turns), "marks": marks}
    if turns[-1][1] != "gone":
        turns.append((at, "gone", ""))
    marks.append({"at": at, "what": "exit", "text": f"exit code {code}"})
    return {"spans": spans([*turns, (end, "", "")]), "marks": marks}


def run_rank(rank: int, ranks: int, folder: str, case: str) -> None:
    """A rank, which notes what it does in a file, line by line: it may be killed."""
    common.end_with_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the messages are noted
    torch.set_num_threads(1)
    with open(Path(folder, f"rank-{rank}.jsonl"), "a", buffering=1) as file:

        def note(**what):
            print(json.dumps({"at": now()} | what), file=file)

        common.join_group(rank, ranks, folder)
        try:
            train(note, case)
        except RuntimeError as error:
            note(turn="error", text="the exception ends the process")
            note(what="error", text=first_line(error))
            # The frames of the traceback hold DDP. If DDP outlives the group, the process may
            # abort when it exits.
            traceback.clear_frames(error.__traceback__)
            dist.destroy_process_group()
            raise
        if rank == wrong_rank(case, ranks) and case == LEAVES:
            time.sleep(5 * TIMEOUT)  # This rank lives until the others have ended.
        dist.destroy_process_group()


def first_line(error: Exception) -> str:
    """A message without the place in gloo's source that it begins with."""
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", str(error).splitlines()[0])


def train(note, case: str) -> None:
    """Take steps of DDP, of which the first three are not noted; on one rank something is wrong."""
    wrong = dist.get_rank() == wrong_rank(case, dist.get_world_size())
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT if case == LEAVES else 60))
    model = common.wider_net(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    ddp_model = common.ddp(model, process_group=group)
    computing = {}

    def wait_begins(_):
        if computing:
            note(turn="wait", text=f"backward of {computing['step']}")

    next(model.parameters()).register_post_accumulate_grad_hook(wait_begins)
    for step in range(-2, 1 + BATCHES):
        noted = note if step > 0 else lambda **_: None
        if step == 1:
            dist.barrier()
        if wrong and case == LEAVES and step == BATCHES:
            noted(what="leaves", text=f"no batch for step {step}: it leaves the loop")
            noted(turn="gone", text="alive, but outside the training")
            return
        if wrong and case == SLOW and step > 0:
            noted(turn="slow", text=f"step {step}: its batch comes late")
            time.sleep(SLOWER)
        noted(turn="compute", text=f"step {step}")
        x, y = common.batch(IMAGES)
        loss = F.cross_entropy(ddp_model(x), y)
        if wrong and case == DIES and step == BATCHES - 1:
            noted(what="dies", text="SIGKILL")
            noted(turn="gone", text="")
            os.kill(os.getpid(), signal.SIGKILL)
        computing.update({"step": f"step {step}"} if step > 0 else {})
        optimizer.zero_grad()
        loss.backward()
        noted(turn="compute", text=f"step {step}")
        optimizer.step()
    note(turn="done", text="")

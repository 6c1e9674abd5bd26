"""4. torchrun."""

import re
from importlib import import_module
from pathlib import Path

from . import moving

lesson = import_module("notebooks.lesson")
failures = import_module("notebooks.ranks.04_failures")


def who_starts_whom(environments: list[dict[str, str]]) -> None:
    """torchrun, the ranks that it starts, and the store in which they find each other."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    chosen = []
    for environment in environments:
        chosen.append({name: environment[name] for name in names})
    lesson.show_moving(moving.launch(chosen))


# ---------------------------------------------------------------- which rank failed first?


def report(run):
    """The last part of torchrun's report, as lines."""
    text = run.launcher.partition("Root Cause")[2].partition("====")[0]
    lines = [line.strip() for line in text.splitlines()]
    traceback = next(k for k, line in enumerate(lines) if line.startswith("traceback"))
    last = [line for line in lines[traceback:] if line][-1]
    kept = [line for line in lines[:traceback] if line[:4] in ("rank", "exit")]
    last = re.sub(r"\[.*?\] |\[.*| by PID.*|(?<=ms) .*", "", last)
    last = last.replace("reset by", "closed by")  # which of the two is chance
    return [re.sub(r" +\(pid: \d+\) *", " ", line) for line in kept] + [last]


def reports(runs: dict) -> None:
    """The end of torchrun's report of each case."""
    text = "\n\n".join(
        "\n".join([f"{case}. Root Cause (first observed failure):", *report(run)])
        for case, run in runs.items()
    )
    lesson.show_code(text.replace("\n", "\n   ").replace("\n   \n   ", "\n\n"), "text")


def named(run):
    """The rank that torchrun calls the root cause."""
    return int(re.search(r"rank *: (\d+)", run.launcher.partition("Root Cause")[2])[1])


def root_causes(runs: dict) -> None:
    """What happens in each case, and the rank that torchrun names."""
    cases = {}
    for case, (failed, how) in failures.CASES.items():
        cases[case] = [failed, how, named(runs[case])]
    lesson.show_moving(moving.failures(cases))


def stack(text):
    """(function, file) of each call in a faulthandler's report, the outermost first."""
    calls = re.findall(r'File "(.*?)", line \d+ in (\w+)', text)[::-1]
    return [(name, Path(file).name) for file, name in calls if name != "wrapper"]


def stacks_of_a_deadlock(run) -> list[str]:
    """A table: the calls of both ranks, the innermost on top -> the innermost call of each."""
    stacks = [stack(err) for err in run.err]
    levels = list(enumerate(zip(*stacks)))[::-1]
    rows = [[level, *(f"`{name}` ({file})" for name, file in calls)] for level, calls in levels]
    lesson.table(["depth", "rank 0", "rank 1"], rows, align="rll")
    return [calls[-1][0] for calls in stacks]

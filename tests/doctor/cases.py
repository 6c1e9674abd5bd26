"""What the doctor is tried on: per finding the smallest scripts that have it, and innocent ones.

A case is a script of `scripts/` and a change of it. Its head says: finding | script | how the run
goes | what is done. The change below has lines as they stand in the script (" "), lines that go
("-") and lines that come ("+"); "@" alone begins the next place. Indentation is the script's.
How a run goes: `twice` (first without the doctor, in the same folder), `alone` (needs --alone),
a number (of ranks, if not 2), `fails` (ends with an error), `hangs`, `any` (one or the other).
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

SCRIPTS = Path(__file__).parent / "scripts"

# finding: the least severity, a pattern of words in its text, the innocent script beside it
FINDINGS = {
    "same-data": ("wrong", "same (data|samples|batch|input)", "search"),
    "same-order": ("wrong", "same order|set_epoch", "own-shuffle"),
    "samples-missing": (
        "check",
        "several ranks|more than one rank|no rank|never|twice|not seen",
        "drawn-with-replacement",
    ),
    "split-differs": ("wrong", "split|each rank (draws|drew)|different(ly)?", "split-before-seeds"),
    "padded-evaluation": ("wrong", "padded|padding|twice|counted", "gathered"),
    "part-of-evaluation": ("wrong", "part|own (shard|share)|not reduced", "inference"),
    "rates-differ": ("wrong", "learning rate|scheduler", "groups"),
    "same-random-numbers": ("check", "same random|random numbers|seed", "equal-seeds"),
    "workers-seeds": ("check", "worker", "workers"),
    "batch-grows": ("check", "batch", "scaled-rate"),
    "uneven-steps": ("wrong", "number of (steps|batches)|steps|batches", "join"),
    "accumulation-weight": ("wrong", "accumulat|micro-batch|weight", "accumulated-rest"),
    "unequal-counts": ("check", "count|mean|unequal", "counted"),
    "not-synced": ("wrong", "no_sync|not synchroni|require_backward_grad_sync", "synced-in-each"),
    "not-through-ddp": ("wrong", "forward|wrapper|\\.module|not called through", "gan"),
    "not-in-ddp": ("wrong", "parameter", "frozen"),
    "nothing-wraps": ("wrong", "wrap|alone|not averaged|never", "local-sgd"),
    "weights-differ": ("wrong", "weights|parameters", "fsdp2"),
    "clip-scaled": ("wrong", "clip|unscale", "as-it-is"),
    "clip-before-average": ("wrong", "clip", "as-it-is"),
    "buffers-differ": ("wrong", "buffer|BatchNorm", "synced-batches"),
    "optimizer-not-restored": ("wrong", "optimizer", "as-it-is"),
    "restored-on-one-rank": ("wrong", "restored|load|one rank|rank 0", "restored-then-sent"),
    "written-by-several": ("check", "writ|several ranks|same file|one (file|path)", "probe"),
    "crossed-order": ("wrong", "order|crossed", "reduced-in-the-loop"),
    "one-rank-communicates": ("wrong", "rank 0|alone|only", "evaluated-on-rank-0"),
    "left-early": ("wrong", "left|early|ended|skip|steps", "early-stop"),
    "hang": ("wrong", "wait|hang|hung", "store-wait"),
    "fixed-port": ("check", "port", "as-it-is"),
    "device-by-global-rank": ("wrong", "LOCAL_RANK|local rank|global rank", "as-it-is"),
    "file-race": ("wrong", "file|download|race", "lock"),
    "too-many-threads": ("wasteful", "thread", "as-it-is"),
    "loss-of-one-rank": ("check", "loss", "progress"),
    "evaluation-in-train-mode": (
        "wrong",
        "train mode|training mode|eval\\(\\)|mode",
        "evaluated-on-all",
    ),
    "too-much-communication": ("wasteful", "every step|per step|barrier|all.?reduce", "closure"),
    "unused-without-need": ("wasteful", "find_unused", "unused"),
    "zero-gradients": ("wrong", "zero|no gradient|None", "frozen"),
}


@dataclass
class Case:
    """A script, how it is started, how it ends, and what is to be said of it."""

    finding: str  # a key of FINDINGS; for an innocent script its name
    script: str
    options: set
    style: str
    source: str

    @property
    def name(self):
        return "-".join(re.findall(r"\w+", f"{self.finding} {self.script} {self.style}"))

    def ranks(self):
        return next((int(word) for word in self.options if word.isdigit()), 2)

    def command(self, file="train.py"):
        """What a reader types after `python -m doctor`, in the folder that has the file."""
        if "mp.spawn" in self.source:
            return f"python {file}"
        return f"torchrun --standalone --nproc-per-node {self.ranks()} {file}"


def read(text):
    """The cases of a text, as the docstring above describes it."""
    cases = []
    for block in text.strip().split("\n\n"):
        head, *change = block.splitlines()
        finding, script, options, style = (part.strip() for part in head.split("|"))
        source = text_of(script)
        for there, then in places(change):
            source = changed(source, there, then, head)
        cases.append(Case(finding, script, set(options.split()), style, source))
    return cases


def text_of(script):
    """A file, or a function of small.py with that file's head and foot."""
    if (SCRIPTS / f"{script}.py").exists():
        return (SCRIPTS / f"{script}.py").read_text()
    head, *functions, foot = (SCRIPTS / "small.py").read_text().split("\n\n\n")
    [function] = [text for text in functions if text.startswith(f"def {script}(")]
    return "\n\n\n".join([head, function.replace(f"def {script}(", "def main("), foot])


def places(change):
    """The lines of a change -> for each place the lines that are there, those that shall be."""
    there, then, come = [], [], False
    for line in [*change, "@"]:
        if there and (line == "@" or (come and line[0] != "+")):
            yield there, then
            there, then, come = [], [], False
        if line[0] in " -":
            there.append(line[2:])
        if line[0] in " +":
            then.append(line[2:])
        come |= line[0] == "+"


def changed(source, there, then, head):
    """Put lines for lines, which have to occur once, at the indentation that they have."""
    lines = source.splitlines()
    wanted = [line.strip() for line in there]
    stripped = [line.strip() for line in lines]
    found = [n for n in range(len(lines)) if stripped[n : n + len(wanted)] == wanted]
    if len(found) != 1:
        raise ValueError(f"{head}: {len(found)} places have {there}")
    first = lines[found[0]]
    indent = " " * (len(first) - len(first.lstrip()))
    lines[found[0] : found[0] + len(there)] = [indent + line for line in then]
    return "\n".join(lines) + "\n"


def mutants():
    return read((Path(__file__).parent / "mutants.txt").read_text())


def innocents():
    return read((Path(__file__).parent / "innocents.txt").read_text())


def size(case):
    return len(case.source)


def main():
    """Print the table: finding, smallest script that has it, smallest innocent one beside it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name", nargs="?", help="print this case's script instead")
    name = parser.parse_args().name
    everything = mutants() + innocents()
    if name:
        print(*(case.source for case in everything if case.name == name), sep="")
        return
    rows = []
    for finding, (severity, _, innocent) in FINDINGS.items():
        has = min((case for case in everything if case.finding == finding), key=size)
        beside = [case for case in everything if case.finding == innocent]
        like = [case for case in beside if case.script == has.script]
        rows.append([severity, has.name, min(like or beside, key=size).name])
    print(tabulate(rows, ["at least", "has it", "has it not"]))


if __name__ == "__main__":
    main()

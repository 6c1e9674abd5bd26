"""What the doctor is tried on: per finding the smallest scripts that have it, and innocent ones.

A case is a script of `scripts/` and a change of it. Its head says: findings | script | how the run
goes | what is done. The first finding is the mistake, the others name it as well. The change below
has lines as they stand in the script (" "), lines that go ("-") and lines that come ("+"). "@"
alone begins the next place. Indentation is the script's.
How a run goes: `twice` (first without the doctor, in the same folder), `alone` (needs --alone),
a number (of ranks, if not 2), `fails` (ends with an error), `hangs`, `any` (one or the other),
`launched` (the mistake is in how ranks are started: test_doctor.py does that), `missed` (known: the
doctor does not name it). `wrong`, `check` and `line-26` say how certain the finding has to be, and
which line it has to name, and `from-21` from which line it comes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Case:
    """A script, how it is started, how it ends, and what is to be said of it."""

    findings: list  # the doctor's keys; for an innocent script its name
    script: str
    options: set
    style: str
    source: str

    @property
    def name(self):
        return "-".join(re.findall(r"\w+", f"{self.findings[0]} {self.script} {self.style}"))

    def ranks(self):
        return next((int(word) for word in self.options if word.isdigit()), 2)

    def line(self, kind="line"):
        """The line that a finding has to name, if the head says one: of `kind` "line" or "from"."""
        for word in self.options:
            if word.startswith(f"{kind}-"):
                return int(word.removeprefix(f"{kind}-"))
        return None

    def command(self, file="train.py"):
        """What a reader types after `ddp-doctor`, in the folder that has the file."""
        if "mp.spawn" in self.source:
            return f"python {file}"
        return f"torchrun --standalone --nproc-per-node {self.ranks()} {file}"


def read(text):
    """The cases of a text, as the docstring above describes it."""
    cases = []
    for block in text.strip().split("\n\n"):
        head, *change = block.splitlines()
        finding, script, options, style = [part.strip() for part in head.split("|")]
        source = text_of(script)
        for there, then in places(change):
            source = changed(source, there, then, head)
        cases.append(Case(finding.split(), script, set(options.split()), style, source))
    return cases


def text_of(script):
    """A file, or a function of small.py with that file's head and foot."""
    if (SCRIPTS / f"{script}.py").exists():
        return (SCRIPTS / f"{script}.py").read_text()
    head, *functions, foot = (SCRIPTS / "small.py").read_text().split("\n\n\n")
    [function] = [text for text in functions if text.startswith(f"def {script}(")]
    return "\n\n\n".join([head, function.replace(f"def {script}(", "def main("), foot])


def places(change):
    """The lines of a change -> for each place the lines that are there, those that come."""
    there = []
    then = []
    come = False
    for line in [*change, "@"]:
        if there and (line == "@" or (come and line[0] != "+")):
            yield there, then
            there = []
            then = []
            come = False
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
    return read((CORPUS / "mutants.txt").read_text())


def innocents():
    return read((CORPUS / "innocents.txt").read_text())

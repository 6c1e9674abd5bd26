"""The logs in logs/, each with a label as its head. A folder has the logs of one round of trials.

They were written after public threads (`source`), in the formats of the programs. Names, hosts and
numbers are invented, and none was run on GPUs. The label was decided from the thread:

ends well    did the run end well?
ranks        the ranks that are the cause, if the log has them
line         the line of the user's script
shows        words of a line that decides; "A || B" if one of two lines is enough
entry        the entry of the messages' pages that applies, if there is one
meaning      what somebody who understands the log would say
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "logs"
# In front of each of the run's files.
NAME = re.compile(r"^==== (\S+)\n", re.MULTILINE)


@dataclass
class Case:
    name: str
    files: list  # (name, text)
    ends_well: bool = False
    ranks: list = field(default_factory=list)
    line: str | None = None
    shows: list = field(default_factory=list)  # a list of alternatives for each line
    entries: list = field(default_factory=list)

    def write(self, folder, change=None):
        """Write the files -> their paths. `change`: a function of a line's number and text."""
        paths = []
        for name, text in self.files:
            if change:
                lines = [change(*pair) for pair in enumerate(text.split("\n")[:-1], 1)]
                text = "\n".join([*lines, ""])
            path = folder / name
            path.write_text(text, encoding="utf-8", newline="\n")
            paths.append(path)
        return paths


def case_of(path):
    head, *parts = NAME.split(path.read_text(encoding="utf-8"))
    case = Case(path.stem, list(zip(parts[::2], parts[1::2])))
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        if key == "ends well":
            case.ends_well = value == "yes"
        elif key == "ranks":
            case.ranks = [int(rank) for rank in value.split()]
        elif key == "line":
            case.line = value
        elif key == "shows":
            case.shows.append(value.split(" || "))
        elif key == "entry":
            case.entries = value.split(" || ")
    return case


def cases():
    return [case_of(path) for path in sorted(FOLDER.glob("*/*.log"))]

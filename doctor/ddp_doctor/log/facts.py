"""The facts: everything that a log can say here.

read.py makes them, words.py prints them, and `--json` writes them with these names. `at` is a
place in a log, as "file:line". A rank is None unless the line, the name of its file or a launcher's
report says which rank it is. `ranks` are all ranks with the same fact, and `times` is how often it
stands in the log.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Thrown:
    """An exception at the end of a traceback."""

    at: str
    message: str
    kind: str  # "own", "waited" (or had no connection), or "report" (of another exception)
    line: str | None  # FILE:LINE, the innermost frame outside of libraries
    called_from: str | None  # FILE:LINE, the outermost frame outside of libraries
    # The message of the last exception that was raised while this one was handled. If this one is
    # of a replica or a loader's worker, the message with which the rank raises it again.
    then: str
    process: str = ""  # that mp.spawn names; it is a rank only if one machine runs all of them
    library: tuple = ()  # "FILE FUNCTION" of the frames in libraries; only entries.py reads them
    ranks: tuple = ()
    times: int = 1


@dataclass(frozen=True)
class Said:
    """A line of the system, of a launcher or of a library, as it stands in the log."""

    at: str
    text: str
    kind: str  # the form's kind: one of those in forms.py, or "mention"
    words: str  # that the form has matched
    ranks: tuple = ()
    times: int = 1


@dataclass(frozen=True)
class Waited:
    """A rank was in a collective until the timeout, or reports in which call it is."""

    at: str
    rank: int
    operation: str
    number: str  # of the collective in its group; "?" if the log does not say
    size: str  # the number of elements or the shape; "?" if the log does not say
    seconds: float | None = None  # the timeout
    line: str | None = None  # FILE:LINE of the script, if the flight recorder's stack is there


@dataclass(frozen=True)
class Queue:
    """The collectives that a rank had handed to NCCL, and those that had ended."""

    rank: int
    enqueued: int
    completed: int
    group: str  # the process group of these numbers, "" if the log does not say


@dataclass(frozen=True)
class Quiet:
    """A rank that the log names, without an error or a timeout of its own."""

    rank: int
    at: str | None
    text: str  # the last line that names it
    seconds: float | None = None  # how long before the first timeout


@dataclass(frozen=True)
class Exited:
    """torchrun's report: how a process ended."""

    rank: int
    code: int
    pid: str
    signal: str = ""  # "Signal 9 (SIGKILL)", if the report has such a line


@dataclass(frozen=True)
class Finished:
    """A line that says that something is finished, and how many lines follow in the same file."""

    at: str
    text: str
    after: int


@dataclass(frozen=True)
class Gathered:
    """How many of the processes said that they are there."""

    ranks: tuple
    world: int


@dataclass(frozen=True)
class Entry:
    """An entry of the messages' pages, and the words of it that stand in the printed lines."""

    title: str
    page: str
    words: str


@dataclass
class Excerpt:
    """All facts of a log, in the order in which they are printed."""

    errors: list = field(default_factory=list)  # Thrown
    said: list = field(default_factory=list)  # Said
    waited: list = field(default_factory=list)  # Waited
    queues: list = field(default_factory=list)  # Queue
    quiet: list = field(default_factory=list)  # Quiet
    joined: list = field(default_factory=list)  # Gathered
    exits: list = field(default_factory=list)  # Exited
    finished: list = field(default_factory=list)  # Finished
    entries: list = field(default_factory=list)  # Entry
    lines: int = 0  # that were read

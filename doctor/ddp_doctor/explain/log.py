"""One pass over the logs of a run: which rank printed each line, and which lines tell something.

A log can have a million lines, and nearly all of them say nothing. So only those lines are kept
that match a fact or a message, and of the others the last one of each rank.
"""

import os
import re
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from .match import CONDITIONS, FACTS, RULES, candidates_of, facts_of, messages_of

# Blanks of web pages, and the mark of a file's encoding.
ODD_BLANKS = re.compile("[\u00a0\u2007\u202f\ufeff]")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DIGITS = re.compile(r"\d+")
PREFIXES = [(kind, re.compile(pattern, re.ASCII)) for kind, pattern in RULES["prefixes"]]
FILE_NAMES = [(kind, re.compile(pattern, re.I)) for kind, pattern in RULES["file_names"]]
LIBRARY = re.compile(RULES["library_files"], re.ASCII)
HARMLESS = re.compile(RULES["harmless"], re.ASCII)
CHAIN = re.compile(RULES["chained_tracebacks"], re.ASCII)
TRACEBACK = "Traceback (most recent call last)"
FRAME = re.compile(r'^\s*(?:[|>]\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?')
STACK_LINE = re.compile(r"^\s*#\d+ \S+ from (\S+):(\d+)")
# The library's own place in front of a message, such as [/pytorch/third_party/gloo/pair.cc:534].
SOURCE_PLACE = re.compile(r"\[\S*/\S+\.(?:cc|cpp):\d+\] ")
HEADER = re.compile(r"[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ ")
CLOCK = re.compile(r"(?<![\[<:\d])(\d\d):(\d\d):(\d\d)\b", re.ASCII)
NUMBERED = re.compile(r" *\d{1,4}: ")
HOST_LABEL = re.compile(r"(?!\d+:)([\w.-]*[\d-][\w.-]*): ", re.ASCII)
# In front of each line of a container: what `kubectl logs --prefix --timestamps` adds.
POD_LABEL = re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] ", re.ASCII)
STAMP = re.compile(r"\d{4}-\d\d-\d\dT(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", re.ASCII)
LABEL_OF_RANK = re.compile(r"\[[Rr]ank ?(\d+)", re.ASCII)
LOCAL_AND_RANK = re.compile(r"\[default(\d+)\]: ?\[rank(\d+)\]:", re.ASCII)
REPORTED_RANK = re.compile(r"\s*rank\s*: (\d+) \(local_rank: \d+\)")
REPORTED_CODE = re.compile(r"\s*exitcode\s*: (-?\d+)\s+\(pid: (\d+)\)")
REPORTED_HOST = re.compile(r"\s*host\s*: (\S+)")
REPORTED_TRACEBACK = re.compile(r"\s*traceback : ")
NAMED_RANK = re.compile(r"\brank[ =:#_]{0,2}(\d{1,4})\b", re.I | re.ASCII)
# A traceback's message may be followed by so many lines that belong to it.
MOST_LINES_AFTER = 25
# So many lines of one form and rank are kept: a message that is printed in each step says no more.
MOST_ALIKE = 100
MOST_SHAPES = 50_000


@dataclass(slots=True)
class Line:
    """A line of a log without its prefix, and what the prefix and the file's name say."""

    file: str
    number: int  # in the file, from 1
    position: int  # over all files
    text: str
    rank: int | None = None
    task: int | None = None  # of srun
    node: int | None = None
    label: str | None = None  # the host's name, if each line of the file begins with one
    host: str | None = None  # in a line of NCCL
    device: int | None = None
    pid: str | None = None
    time: int | None = None  # seconds since midnight, of this line or the last one with a time

    @property
    def stream(self):
        return self.file, self.label or self.task, self.rank


@dataclass
class Segment:
    """One traceback of a chain."""

    inner: bool  # the cause of what is printed around it, such as a loader worker's
    user: str | None = None  # FILE:LINE of the last frame outside of libraries
    line: Line | None = None  # the line with the exception
    message: str = ""


@dataclass
class Block:
    """A traceback with all that is chained to it."""

    ignored: bool
    segments: list = field(default_factory=list)
    chained: str = ""
    text: list = field(default_factory=list)
    frames: list = field(default_factory=list)  # "file function" of all its frames
    after: int = 0


@dataclass
class Tail:
    """The end of one file: where progress, a normal end and an exit code were last seen."""

    progress: deque = field(default_factory=lambda: deque(maxlen=3))
    end: Line | None = None
    exit: int = -1


@dataclass
class Shape:
    """What lines that differ only in their numbers have in common."""

    facts: list  # those that such a line may match
    candidates: list  # messages that have their word in such a line
    harmless: bool
    kept: dict = field(default_factory=dict)  # rank -> how many of them are kept


# Most conditions and facts do not ask for a number, so one line of a shape answers for all.
NUMBERED_CONDITIONS = {words for words in CONDITIONS if DIGITS.search(words)}
NUMBERED_FACTS = [fact for fact in FACTS if fact.needs]
EXIT_FACTS = [fact for fact in FACTS if fact.role == "exit"]
OTHER_FACTS = [fact for fact in FACTS if not fact.needs]


class Log:
    """What one pass over the lines has found. Nothing here is a judgement."""

    def __init__(self):
        self.seen = set()  # the conditions that some line fulfils
        self.notable = []  # (line, messages) of lines outside of tracebacks
        self.blocks = []  # (stream, Block)
        self.values = {}  # the fields of facts: the interface, Slurm's step, ...
        self.hints = []  # (fact, line, fields)
        self.complaints = {}  # rank -> its first line about an error that no message explains
        self.collectives = {}  # rank -> what the watchdog said
        self.stacks = {}  # rank -> the user's line in the stack of the failed collective
        self.exits = {}  # rank -> exit code in a launcher's report
        self.torn = False  # is a report's end there, without the line that names its rank?
        self.lone_codes = []  # the exit codes of torn reports
        self.local_exits = []  # torchrun's lines with a local rank, for logs without its report
        self.hosts = {}  # rank -> host in torchrun's report
        self.ranks_of_pids = {}
        self.talk = {}  # (node or task, rank) -> the last line that is no message of a library
        self.tails = {}  # file -> Tail
        self.ranks = set()  # those that some line or report names
        self.ranks_are_named = False  # by prefixes of lines, or names of files
        self.nodes = set()
        self.nccl_hosts = set()
        self.world = 0
        self.per_node = 1
        self.tasks_are_nodes = False
        self.blank = True
        # While reading:
        self.open = {}  # stream -> Block
        self.shapes = {}
        self.before = ""
        self.stack_rank = None
        self.report_rank = None
        self.report_host = None
        self.in_torn_traceback = False

    # 1. One line.

    def read(self, line):
        self.read_report(line)
        self.know(line)
        self.read_words(line)
        self.before = line.text

    def read_words(self, line):
        stack = STACK_LINE.match(line.text)
        if stack:
            if not LIBRARY.search(stack[1]) and self.stack_rank is not None:
                self.stacks.setdefault(self.stack_rank, f"{stack[1]}:{stack[2]}")
            return
        shape = self.shape_of(line.text)
        for words in NUMBERED_CONDITIONS:
            if words in line.text:
                self.seen.add(words)
        block = self.open.get(line.stream)
        # torchrun's own tracebacks have its header before each line, and are matched line by line.
        if block or (TRACEBACK in line.text and not HEADER.match(line.text)):
            if self.read_traceback(line, block):
                self.match_inside(line, shape)
                return
        self.match(line, shape)

    def know(self, line):
        """A rank or a host exists if a prefix or the name of a file says so."""
        if line.text:
            self.blank = False
        if line.rank is not None:
            self.ranks.add(line.rank)
            self.ranks_are_named = True
            if line.pid:
                self.ranks_of_pids.setdefault(line.pid, line.rank)
        if line.node is not None:
            self.nodes.add(line.node)
        if line.host is not None:
            self.nccl_hosts.add(line.host)
        if line.task is not None and line.rank not in (None, line.task):
            self.tasks_are_nodes = True

    def shape_of(self, text):
        form = DIGITS.sub("0", text)
        shape = self.shapes.get(form)
        if shape is None:
            if len(self.shapes) > MOST_SHAPES:
                self.shapes.clear()
            facts = [fact for fact in OTHER_FACTS if fact.pattern.search(text)]
            shape = Shape(facts + NUMBERED_FACTS, candidates_of(text), bool(HARMLESS.search(text)))
            self.shapes[form] = shape
            for words in CONDITIONS:
                if words in text:
                    self.seen.add(words)
        return shape

    def match(self, line, shape):
        facts = facts_of(line.text, shape.facts)
        for fact, fields in facts:
            self.take(fact, line, fields)
        roles = {fact.role for fact, _ in facts}
        found = []
        if shape.candidates and roles.isdisjoint(("exit", "ignore")):
            found = messages_of(line.text, shape.candidates)
        kept = shape.kept.get(line.rank, 0)
        if found and kept < MOST_ALIKE:
            shape.kept[line.rank] = kept + 1
            self.notable.append((line, found))
        if not found and "complaint" in roles:
            self.complaints.setdefault(line.rank, line)
        if not found and not shape.harmless:
            if not facts or not roles.isdisjoint(("progress", "end")):
                self.remember(line)

    def match_inside(self, line, shape):
        """A line of a traceback: its words are matched with the whole, and here only the facts."""
        block = self.open.get(line.stream)
        ended = block and block.segments[-1].line
        for fact, fields in facts_of(line.text, shape.facts):
            if fact.role == "fact" or (ended and fact.role in ("progress", "end")):
                self.take(fact, line, fields)

    def take(self, fact, line, fields):
        rank = number(fields.get("rank"), line.rank)
        if "world" in fields:
            self.world = max(self.world, int(fields["world"]))
        if "local" in fields:
            self.per_node = max(self.per_node, int(fields["local"]) + 1)
        pid = fields.get("pid", line.pid)
        if "rank" in fields:
            self.ranks.add(rank)
            if pid:
                self.ranks_of_pids[pid] = rank
        if fact.role == "fact":
            for name, value in fields.items():
                self.values.setdefault(name, value)
            if fact.meaning:
                self.hints.append((fact, line, fields))
        elif fact.role == "collective":
            self.take_collective(line, rank, fields)
        elif fact.role == "exit":
            self.take_exit(fact, line, fields)
        elif fact.role == "progress":
            self.tail(line).progress.append(line.position)
            self.seen.add("(progress)")
        elif fact.role == "end":
            self.tail(line).end = line

    def take_collective(self, line, rank, fields):
        self.stack_rank = rank
        if rank is None:
            return
        known = self.collectives.setdefault(rank, {"line": line})
        for name, value in fields.items():
            known.setdefault(name, value)
        if "operation" in known:
            known.setdefault("sequence", "0")  # PyTorch 1.x prints none

    def take_exit(self, fact, line, fields):
        self.tail(line).exit = line.position
        code = int(fields.get("code", fact.code or 1))
        if "local" in fields:
            self.local_exits.append((line, int(fields["local"]), fields["pid"], code))
        if line.label:
            return  # such a launcher counts the ranks of each host from 0
        for rank in expand(fields.get("ranks", "")):
            self.exits.setdefault(rank, code)

    def tail(self, line):
        return self.tails.setdefault(line.file, Tail())

    def remember(self, line):
        rank = line.rank
        named = NAMED_RANK.search(line.text[:60])
        if rank is None and named:
            rank = int(named[1])
        self.talk[(line.node, line.task, rank)] = line

    # 2. torchrun's report, which has one line for the host, the rank and the exit code.

    def read_report(self, line):
        if line.text.startswith(("---", "===")):
            stream = replace(line, rank=self.report_rank).stream
            if stream in self.open:
                self.close(stream)
            self.report_rank = None
            return
        if self.report_rank is not None and line.rank is None and line.text.startswith("  "):
            # With @record the report has the traceback, too, indented by two blanks.
            line.rank = self.report_rank
            line.text = line.text[2:].removeprefix("traceback : ")
        elif self.report_rank is None:
            self.read_torn_report(line)
        if ":" not in line.text[:20]:
            return
        host = REPORTED_HOST.match(line.text)
        if host:
            self.report_host = host[1]
        rank = REPORTED_RANK.match(line.text)
        if rank:
            self.report_rank = int(rank[1])
            self.hosts[self.report_rank] = self.report_host
        code = REPORTED_CODE.match(line.text)
        if code:
            self.tail(line).exit = line.position
        if code and self.report_rank is not None:
            self.exits[self.report_rank] = int(code[1])
            self.ranks_of_pids[code[2]] = self.report_rank
        elif code:
            self.torn = True
            self.lone_codes.append(int(code[1]))

    def read_torn_report(self, line):
        """People paste the last lines of a report, without the one that names the rank."""
        traceback = REPORTED_TRACEBACK.match(line.text)
        if traceback:
            line.text = line.text[traceback.end() :]
            self.torn = self.in_torn_traceback = True
        elif self.in_torn_traceback and line.text.startswith("  "):
            line.text = line.text[2:]
        else:
            self.in_torn_traceback = False

    # 3. Tracebacks. The cause is the first of a chain, or the one inside of a worker or a process.

    def read_traceback(self, line, block):
        """Collect a traceback with its message; True if the line belongs to one."""
        text = line.text
        if TRACEBACK in text:
            self.start_traceback(line, block)
            return True
        if CHAIN.search(text):
            block.chained = "inner" if "-- Process" in text else "after"
            block.after = 0
            self.take_exits(text, line)
            return True
        segment = block.segments[-1]
        frame = FRAME.match(text)
        if frame:
            block.frames.append(f"{frame[1]} {frame[3]}")
            if not LIBRARY.search(frame[1]):
                segment.user = f"{frame[1]}:{frame[2]}"
        elif segment.line is None:
            # Two ranks that print at the same time mix their lines: "^^^^  File ..." is no message.
            if text and not text[0].isspace() and text[0] != "^":
                segment.line = line
                segment.message = SOURCE_PLACE.sub("", text.strip())
        else:
            block.after += 1
            if segment.message.endswith(":") and text.strip() and not segment.inner:
                segment.message += " " + text.strip()
            over = AFTER_TRACEBACK.match(text) or block.after > MOST_LINES_AFTER
            if over and not block.chained:
                self.close(line.stream)
                return False
        block.text.append(text)
        return True

    def start_traceback(self, line, block):
        inner = "Original Traceback" in line.text or bool(block and block.chained == "inner")
        if block and not block.chained and not inner:
            self.close(line.stream)
            block = None
        if block is None:
            block = Block(self.before.startswith("Exception ignored in"))
            self.open[line.stream] = block
        if inner:
            block.text = []
        block.segments.append(Segment(inner))
        block.chained = ""

    def close(self, stream):
        block = self.open.pop(stream)
        block.segments = [segment for segment in block.segments if segment.line]
        if not block.segments or block.ignored:
            return
        self.blocks.append((stream, block))
        self.take_exits("\n".join(block.text), block.segments[0].line)

    def take_exits(self, text, line):
        """mp.spawn and Lightning report a rank's exit code in an exception."""
        for fact, fields in facts_of(text, EXIT_FACTS):
            self.take(fact, line, fields)

    # 4. After the last line.

    def finish(self):
        for stream in list(self.open):
            self.close(stream)
        for line, local, pid, code in self.local_exits:
            if pid not in self.ranks_of_pids:
                self.exits.setdefault((line.node or 0) * self.per_node + local, code)
        self.ranks |= set(self.collectives) | set(self.exits)
        if self.world <= 64:
            self.ranks |= set(range(self.world))
        self.ranks.discard(None)
        if self.per_node == 1 and self.nodes == set(range(len(self.nodes))):
            self.ranks |= self.nodes
        self.last_words = {}  # rank -> line
        for (_, task, rank), line in self.talk.items():
            self.place(line)
            rank = task if rank is None and not self.tasks_are_nodes else rank
            have = self.last_words.get(rank)
            if have is None or have.position < line.position:
                self.last_words[rank] = line
        for line, _ in self.notable:
            self.place(line)
        for _, block in self.blocks:
            for segment in block.segments:
                self.place(segment.line)
        self.ranks |= set(self.last_words) - {None}
        return self

    def place(self, line):
        """`srun -l` numbers tasks. A task is a rank, or a torchrun whose ranks have numbers."""
        if line.task is None:
            return
        if self.tasks_are_nodes:
            line.node = line.task
        elif line.rank is None:
            line.rank = line.task
            self.ranks.add(line.task)


AFTER_TRACEBACK = re.compile(r"\[?[EWIF]\d{3,4} |={8}|\[[A-Z]\d|srun: |slurmstepd: ")


def number(text, otherwise):
    return int(text) if text and text.isdigit() else otherwise


def expand(text):
    """The ranks that Slurm writes as 0-2,5."""
    ranks = []
    for part in re.findall(r"\d+(?:-\d+)?", text.replace(" ", "")):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


# 5. Files, and the prefixes of their lines.


def read_logs(paths, names):
    """-> Log. `paths` are the log files of one run, `names` the names of some to be shown."""
    log = Log()
    names = short_names(paths) | names
    position = 0
    for path in paths:
        for line in lines_of(path, names[path]):
            line.position = position
            position += 1
            log.read(line)
    return log.finish()


def short_names(paths):
    names = {path: Path(path).name for path in paths}
    if len(set(names.values())) < len(names):
        common = os.path.commonpath([Path(path).resolve().parent for path in paths])
        names = {path: Path(path).resolve().relative_to(common).as_posix() for path in paths}
    return names


def lines_of(path, name):
    """The lines of one file, with what is known of each."""
    # The name of the file that has standard input is arbitrary.
    of_file = {} if name == "stdin" else numbers_of_name(str(path).replace("\\", "/"))
    with open_text(path) as opened:
        first_lines = [of_container(line)[0] for line in islice(opened, 400)]
    tasks, hosts, ranks = labels_of(first_lines)
    if len(ranks) > 1:
        of_file.pop("rank", None)  # the number in the name is something else
    labelled = any("[default" in line for line in first_lines)
    ranks_of_locals = locals_of(path) if labelled else {}
    time = None
    with open_text(path) as opened:
        for count, raw in enumerate(opened, 1):
            raw, pod, stamp = of_container(raw)
            for text in parts_of(raw):
                line = Line(name, count, 0, text, node=of_file.get("node"), label=pod)
                take_prefixes(line, tasks, hosts, ranks_of_locals)
                if line.rank is None:
                    line.rank = of_file.get("rank")
                clock = CLOCK.search(line.text) if ":" in line.text else None
                clock = clock or stamp
                if clock:
                    time = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
                line.time = time
                yield line


def of_container(raw):
    """-> the line without what `kubectl logs` has put in front, the pod's name, the time"""
    pod = POD_LABEL.match(raw) if raw.startswith("[pod/") else None
    if pod:
        raw = raw[pod.end() :]
    stamp = STAMP.match(raw) if raw.startswith("2") else None
    if stamp:
        raw = raw[stamp.end() :]
    return raw, pod[1] if pod else None, stamp


def open_text(path):
    """Windows PowerShell writes UTF-16, and a killed process leaves half a character."""
    with open(path, "rb") as opened:
        start = opened.read(2)
    encoding = "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return open(path, encoding=encoding, errors="replace", newline="\n")


def parts_of(raw):
    """A progress bar overwrites its line. Only its last state is of interest, and other words."""
    text = raw.rstrip() if raw.isascii() else ODD_BLANKS.sub(" ", raw).rstrip()
    if "\x1b" in text:
        text = COLOURS.sub("", text).rstrip()
    if "\r" not in text:
        return [text]
    parts = text.split("\r")
    return [part for part in parts[:-1] if part.strip() and "%|" not in part] + parts[-1:]


def numbers_of_name(path):
    for kind, pattern in FILE_NAMES:
        match = pattern.search(path)
        if match:
            return {kind: int(match[1])}
    return {}


def labels_of(lines):
    """Do the first lines begin with a task's number (`srun -l`), with a host's name (pdsh), and
    with which ranks?
    """
    tasks = [line for line in lines if NUMBERED.match(line)]
    hosts = [line for line in lines if HOST_LABEL.match(line)]
    ranks = set()
    for line in lines:
        match = LABEL_OF_RANK.match(line)
        if match:
            ranks.add(match[1])
    return len(tasks) > 0.6 * len(lines), len(hosts) > 0.6 * len(lines), ranks


def locals_of(path):
    """torchrun labels lines with the rank within the node, and PyTorch those of a failure with the
    rank over all nodes -> {local rank: rank} of the lines that have both.
    """
    found = {}
    with open_text(path) as opened:
        for line in opened:
            match = LOCAL_AND_RANK.match(line) if line.startswith("[") else None
            if match:
                found.setdefault(int(match[1]), int(match[2]))
    return found


def take_prefixes(line, tasks, hosts, ranks_of_locals):
    label = HOST_LABEL.match(line.text) if hosts else None
    if label:
        line.label = label[1]
        line.text = line.text[label.end() :]
    for kind, pattern in PREFIXES:
        match = pattern.match(line.text)
        if not match or (kind == "task" and not tasks):
            continue
        if kind == "nccl":
            line.host = match["host"]
            line.pid = match["pid"]
            line.device = int(match["device"])
        elif kind == "pid":
            line.pid = match[1]
        elif kind == "task":
            line.task = int(match[1])
        elif kind == "rank":
            line.rank = int(match[1])
        elif kind == "local" and line.rank is None:
            line.rank = ranks_of_locals.get(int(match[1]), int(match[1]))
        line.text = line.text[match.end() :]

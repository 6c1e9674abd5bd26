"""Files -> lines: the text of each line without its prefixes, and which rank these name."""

import os
import re
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MARKS_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# Blanks of web pages, and the mark of a file's encoding.
ODD_BLANKS = re.compile("[\u00a0\u2007\u202f\ufeff]")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DIGITS = re.compile(r"\d+")
CLOCK = re.compile(r"(?<![\[<:\d])(\d\d):(\d\d):(\d\d)\b", re.ASCII)
# In front of each line of a container: what `kubectl logs --prefix --timestamps` adds.
POD_LABEL = re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] ", re.ASCII)
STAMP = re.compile(r"\d{4}-\d\d-\d\dT(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", re.ASCII)
HOST_LABEL = re.compile(r"(?!\d+:)([\w.-]*[\d-][\w.-]*): ", re.ASCII)
TABBED = re.compile(r"\s*\d+\t", re.ASCII)  # the numbers of `cat -n`
NUMBERED = re.compile(r" *(\d{1,4}): ", re.ASCII)
PREFIXES = (
    ("rank", re.compile(r"\[[Rr]ank ?:? ?(\d+)\]:? ?", re.ASCII)),
    ("rank", re.compile(r"[Rr]ank (\d+): ", re.ASCII)),
    ("rank", re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>: ?", re.ASCII)),  # mpirun --tag-output
    ("local", re.compile(r"\[(?:default|worker|trainer)(\d+)\]: ?", re.ASCII)),  # torchrun --tee
    ("task", NUMBERED),  # srun --label
    ("rank", re.compile(r"\[[Rr]ank ?:? ?(\d+)\]:? ?", re.ASCII)),
    ("pid", re.compile(r"\(\w+ pid=(\d+)[^)]*\) ?", re.ASCII)),  # Ray
    ("rank", re.compile(r"\[[Rr]ank ?:? ?(\d+)\]:? ?", re.ASCII)),
)
# The names of Kubernetes' pods do not say which ranks run in them.
RANK_OF_NAME = re.compile(r"(?<!node)(?<!node.)(?<!local)(?<!local.)rank[-_]?(\d+)[^/]*$", re.I)
TASK_OF_NAME = re.compile(r"_(\d+)_log\.(?:out|err)$")  # submitit
LOCAL_OF_NAME = re.compile(r"attempt_\d+/(\d+)/[^/]*$")
LOCAL_AND_RANK = re.compile(r"\[default(\d+)\]: ?\[rank(\d+)\]:", re.ASCII)
# What stands in front of one of these is a prefix.
MARK = re.compile(r'\[rank ?\d+\]|Traceback \(most recent|  File "|  exitcode +:', re.ASCII)
# A prefix that other rules know, behind one of unknown form.
KNOWN = re.compile(
    r"(?:\[(?:default|worker|trainer)\d+\]: ?|(?:^|(?<=\s))\d{1,4}: |\(\w+ pid=\d+[^)]*\) ?)+$",
    re.ASCII,
)
BARS = "|\u2502\u2503"  # of a box around the text
LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b *")
RANK_IN_HEAD = re.compile(r"\brank[ =:]{0,2}(\d+)", re.I | re.ASCII)
# The share of a file's lines that have a prefix, if each line has it.
MOST = 0.6


@dataclass(frozen=True)
class Line:
    """A line of a log without its prefixes, and what these and the file's name say."""

    file: str
    number: int  # in the file, from 1
    text: str
    rank: int | None = None
    local: int | None = None  # the rank within a node
    task: int | None = None  # of srun
    label: str | None = None  # of the host or the pod
    pid: str | None = None  # as Ray prints it
    time: int | None = None  # seconds since midnight, of this line or the last one with a time

    @property
    def at(self):
        return f"{self.file}:{self.number}"

    @property
    def stream(self):
        """Lines of one traceback have the same stream."""
        return self.file, self.label, self.task, self.local, self.rank, self.pid


@dataclass(frozen=True)
class Habits:
    """What the lines of one file have in common."""

    rank: int | None
    local: int | None
    task: int | None
    head: re.Pattern | None  # a prefix of unknown form, such as a logger's
    tasks: bool  # does each line begin with the number of a task,
    hosts: bool  # or with the name of a host?
    ranks: dict  # local rank -> rank, of torchrun's lines that name both


def files_of(paths):
    """The files of a run: of a folder all text files below it."""
    files = []
    for path in map(Path, paths):
        if path.is_dir():
            files += [one for one in sorted(path.rglob("*")) if one.is_file() and is_log(one)]
        else:
            files.append(path)
    return files


def is_log(path):
    """torchrun writes error.json next to its logs, and the flight recorder writes pickles."""
    with open(path, "rb") as opened:
        start = opened.read(1000)
    return path.suffix != ".json" and (b"\0" not in start or start[:2] in MARKS_OF_UTF16)


def short_names(paths):
    """-> {path: its name}, with folders if two files have the same name."""
    names = {path: Path(path).name for path in paths}
    if len(set(names.values())) == len(names):
        return names
    parents = [Path(path).resolve().parent for path in paths]
    common = os.path.commonpath(parents)
    return {path: Path(path).resolve().relative_to(common).as_posix() for path in paths}


def open_text(path):
    """Windows PowerShell writes UTF-16, and a killed process leaves half a character."""
    with open(path, "rb") as opened:
        start = opened.read(2)
    encoding = "utf-16" if start in MARKS_OF_UTF16 else "utf-8"
    return open(path, encoding=encoding, errors="replace", newline="\n")


def lines_of(path, name):
    """The lines of one file, with what is known of each."""
    habits = habits_of(path, name)
    time = None
    with open_text(path) as opened:
        for number, raw in enumerate(opened, 1):
            raw, pod, stamp = of_container(raw)
            for text in parts_of(raw):
                clock = CLOCK.search(text) if ":" in text else None
                clock = clock or stamp
                if clock:
                    hours, minutes, seconds = clock.groups()
                    time = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
                yield line_of(text, habits, file=name, number=number, label=pod, time=time)


def line_of(text, habits, **known):
    """Take the prefixes away, and keep what they say."""
    found = {"rank": habits.rank, "local": habits.local, "task": habits.task}
    head = habits.head.match(text) if habits.head else None
    if head:
        text = text[head.end() :]
        if head[0].rstrip()[-1:] in BARS:
            text = text.rstrip(BARS + " ")
        named = RANK_IN_HEAD.search(head[0])
        if named:
            found["rank"] = int(named[1])
    host = HOST_LABEL.match(text) if habits.hosts else None
    if host:
        known["label"] = host[1]
        text = text[host.end() :]
    if text[:1] in "[( rR" or habits.tasks:
        for kind, pattern in PREFIXES:
            if kind == "task" and not habits.tasks:
                continue
            match = pattern.match(text)
            if match:
                found[kind] = match[1] if kind == "pid" else int(match[1])
                text = text[match.end() :]
    if found["rank"] is None and found["local"] in habits.ranks:
        found["rank"] = habits.ranks[found["local"]]
    return Line(text=text, **known, **found)


def of_container(raw):
    """-> the line without what `kubectl logs` has put in front, the pod's name, the time."""
    pod = POD_LABEL.match(raw) if raw.startswith("[pod/") else None
    if pod:
        raw = raw[pod.end() :]
    stamp = STAMP.match(raw) if raw.startswith("2") else None
    if stamp:
        raw = raw[stamp.end() :]
    return raw, pod[1] if pod else None, stamp


def parts_of(raw):
    """A progress bar overwrites its line. Only its last state is of interest, and other words."""
    text = raw.rstrip() if raw.isascii() else ODD_BLANKS.sub(" ", raw).rstrip()
    if "\x1b" in text:
        text = COLOURS.sub("", text).rstrip()
    if "\r" not in text:
        return [text]
    parts = text.split("\r")
    return [part for part in parts[:-1] if part.strip() and "%|" not in part] + parts[-1:]


# ------------------------------------------------------------------ what lines have in common


def habits_of(path, name):
    """Read the first and the last lines of a file. Its errors are among the last ones."""
    with open_text(path) as opened:
        first = list(islice(opened, 400))
        last = list(deque(opened, 2000))
    lines = []
    for raw in first + last:
        text = parts_of(of_container(raw)[0])[-1]
        if text.strip():
            lines.append(text)
    counting = share_of(NUMBERED, lines) > MOST and is_counting(lines)
    if share_of(TABBED, lines) > MOST:
        head = TABBED
    else:
        head = NUMBERED if counting else head_of(lines)
    if head:
        lines = [head.sub("", text, count=1) for text in lines]
    numbers = numbers_of_name(path, name)
    if len({match[1] for match in map(PREFIXES[0][1].match, lines) if match}) > 1:
        numbers["rank"] = None  # The lines name several ranks, so the name means something else.
    both = [match for match in map(LOCAL_AND_RANK.match, lines) if match]
    ranks = {int(match[1]): int(match[2]) for match in both}
    tasks = share_of(NUMBERED, lines) > MOST
    hosts = share_of(HOST_LABEL, lines) > MOST
    return Habits(head=head, tasks=tasks, hosts=hosts, ranks=ranks, **numbers)


def numbers_of_name(path, name):
    """The name that standard input has here is arbitrary."""
    where = "" if name == "stdin" else Path(path).as_posix()
    found = {}
    for kind, pattern in (("rank", RANK_OF_NAME), ("local", LOCAL_OF_NAME), ("task", TASK_OF_NAME)):
        match = pattern.search(where)
        found[kind] = int(match[1]) if match else None
    return found


def share_of(pattern, lines):
    matched = sum(1 for line in lines if pattern.match(line))
    return matched / max(1, len(lines))


def is_counting(lines):
    """Are the numbers in front those of an editor?"""
    numbers = [int(match[1]) for match in map(NUMBERED.match, lines) if match]
    return len(numbers) > 9 and numbers == sorted(set(numbers))


def head_of(lines):
    """The prefix that most lines share and that no other rule knows: of a logger, an editor, a box.

    It stands in front of "Traceback" or "[rank0]", and the digits in it differ.
    """
    counts = {}
    for text in lines:
        mark = MARK.search(text[:200])
        head = KNOWN.sub("", text[: mark.start()]) if mark else ""
        if head.strip() and not HOST_LABEL.fullmatch(head):
            form = form_of(head)
            counts[form] = counts.get(form, 0) + 1
    for form in sorted(counts, key=counts.get, reverse=True)[:3]:
        pattern = re.compile(form)
        if share_of(pattern, lines) > MOST:
            return pattern
    return None


def form_of(head):
    """A pattern for heads that differ in digits, blanks and the level of a logger only."""
    text = LEVEL.sub("\0", head.strip())
    text = re.escape(DIGITS.sub("0", text))
    text = re.sub(r"(?:\\ )+", r"\\s+", text).replace("0", r"\d+")
    # More blanks behind it are the indentation of the line itself.
    blanks = len(head) - len(head.rstrip())
    return r"\s*" + text.replace("\0", r"[A-Z]+ *") + f" {{0,{blanks}}}"

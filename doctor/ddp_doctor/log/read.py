"""Lines -> facts, in one pass. A log can have a million lines, so alike facts are only counted."""

import re
from dataclasses import replace

from .facts import Excerpt, Exited, Finished, Gathered, Queue, Quiet, Said, Waited
from .forms import FORMS, LIBRARY, MENTIONS, MISMATCH, NOISE
from .lines import files_of, lines_of, short_names
from .tracebacks import Tracebacks, raised_of

STACK_FRAME = re.compile(r"\s*#\d+ \S+ from (\S+):(\d+)", re.ASCII)
NAMED_RANK = re.compile(r"(?<![-\w])rank[ =:#]{0,2}(\d{1,4})\b", re.I | re.ASCII)
REPORTED_RANK = re.compile(r"\s*rank\s*: (\d+) \(local_rank: \d+\)", re.ASCII)
REPORTED_CODE = re.compile(r"\s*exitcode\s*: (-?\d+)\s+\(pid: (\d+)\)", re.ASCII)
REPORTED_SIGNAL = re.compile(r"(Signal \d+ \(\w+\)) received by PID \d+", re.ASCII)
OF_TORCHRUN = ("failed (exitcode:", " death signal")
FAILURE = re.compile("error|exception", re.I)
# A line is quoted once.
QUOTED = {"exit", "system", "complaint", "warning", "finished"}
DIGITS = re.compile(r"\d+")
# So many different facts of one kind are kept. The excerpt shows fewer.
MOST_KEPT = 300
MOST_MENTIONS = 3
MOST_LATEST = 100


class Reader:
    """Reads all lines of a run. facts() gives what they say."""

    def __init__(self):
        self.found = {}  # what makes facts alike -> the first of them
        self.full = False  # were some left out?
        self.ranks_of = {}  # the same -> the ranks that have it
        self.times = {}  # the same -> how often it was there
        self.processes = {}  # the same -> the processes that have it
        self.mentions = {}  # form -> Said, of the first lines with such words
        self.warnings = {}  # the same, of Python's and PyTorch's warnings
        self.waited = {}  # rank -> Waited
        self.clocks = []  # of the timeouts
        self.queues = {}  # rank -> Queue
        self.failed = set()  # ranks of which the watchdog says that something failed
        self.exits = {}  # rank -> Exited
        self.joined = {}  # rank -> world
        self.all_joined = False
        self.finished = {}  # file -> [Finished], with the number of the line
        self.sizes = {}  # file -> its number of lines
        self.last = {}  # rank -> the last line that names it, or that names no rank
        self.latest = {}  # rank -> lines that may be its last
        self.ranks = set()  # that a prefix or a report names
        self.ranks_of_pids = {}
        self.torchrun = False
        self.tasks_differ = False  # has a line the number of a task and that of another rank?
        self.tracebacks = Tracebacks()
        self.stack_rank = None
        self.unfinished = None  # the key of a line that goes on below
        self.reported = None  # the rank of torchrun's report that is being read
        self.lines = 0

    # One line.

    def read(self, line):
        self.sizes[line.file] = line.number
        if line.text:
            self.lines += 1
        if line.rank is not None:
            self.ranks.add(line.rank)
            self.tasks_differ = self.tasks_differ or line.task not in (None, line.rank)
            if line.pid:
                self.ranks_of_pids[line.pid] = line.rank
        line = self.read_report(line)
        inside, ended = self.tracebacks.feed(line)
        for chain in ended:
            self.close(chain)
        if not inside:
            self.read_forms(line)
        elif MISMATCH.word in line.text:
            self.take_mismatch(line)

    def read_report(self, line):
        """torchrun's report, which with @record has the traceback, too."""
        text = line.text
        if text.startswith(("---", "===")):
            self.reported = None
        rank = REPORTED_RANK.match(text) if "rank" in text[:20] else None
        if rank:
            self.torchrun = True
            self.reported = int(rank[1])
            self.ranks.add(self.reported)
        code = REPORTED_CODE.match(text) if "exitcode" in text[:20] else None
        if code and self.reported is not None:
            self.exits[self.reported] = Exited(self.reported, int(code[1]), code[2])
        signal = REPORTED_SIGNAL.search(text) if "received by PID" in text else None
        if signal and self.reported in self.exits:
            self.exits[self.reported] = replace(self.exits[self.reported], signal=signal[1])
        if code and self.reported is None:
            self.keep(("exit", code[1]), Said(line.at, text.strip(), "exit", code[0]), line)
        if text.startswith("  ") and self.reported is not None and line.rank is None:
            text = text[2:].removeprefix("traceback : ")
            return replace(line, text=text, rank=self.reported)
        return line

    def read_forms(self, line):
        text = line.text
        stack = STACK_FRAME.match(text) if "#" in text[:8] else None
        if stack:
            self.read_stack(stack)
        if stack or "NCCL INFO" in text:
            return
        self.go_on(text)
        told = set()
        for one in [one for one in FORMS if one.word in text]:
            quoted = one.kind in QUOTED and told & QUOTED
            match = None if quoted else one.pattern.search(text)
            if match:
                told.add(one.kind)
                take = getattr(self, f"take_{one.kind}")
                take(line, one, match)
        if told or self.reported is not None:
            return
        self.remember(line)
        if "Warning: " in text:
            self.mention(line, self.warnings, "warning")
        elif len(self.mentions) < MOST_MENTIONS:
            lower = text.lower()
            if any(word in lower for word in MENTIONS):
                self.mention(line, self.mentions, "mention")

    def go_on(self, text):
        """Add an indented line to the line above that ends with a colon."""
        said = self.found.get(self.unfinished)
        more = text.strip()
        if len(more) > 120:
            more = f"{more[:117]}..."
        # A line that begins with a bracket is another one, of a logger or of PyTorch.
        belongs = text.startswith(("\t", "    ")) and not more.startswith("[")
        if said and belongs and len(said.text) < 600:
            self.found[self.unfinished] = replace(said, text=f"{said.text} {more}")
        else:
            self.unfinished = None

    def mention(self, line, kept, kind):
        """Keep the first lines of a kind that is shown only if nothing else looks wrong."""
        form = DIGITS.sub("0", line.text)
        if form not in kept and len(kept) < MOST_MENTIONS:
            ranks = () if line.rank is None else (line.rank,)
            words = "Warning: " if kind == "warning" else ""
            kept[form] = Said(line.at, line.text.strip(), kind, words, ranks)

    def remember(self, line):
        rank = line.rank
        if rank is None:
            named = NAMED_RANK.search(line.text[:60])
            rank = int(named[1]) if named else self.ranks_of_pids.get(line.pid)
        latest = self.latest.setdefault(rank, [])
        latest.append(line)
        if len(latest) > MOST_LATEST:
            self.settle(rank)

    def settle(self, rank):
        """Find the last of the latest lines that is no noise. To ask each line would cost more."""
        for line in reversed(self.latest[rank]):
            if not NOISE.search(line.text):
                self.last[rank] = line
                break
        self.latest[rank] = []

    # Facts. Those that differ in numbers only are alike.

    def keep(self, key, fact, line, rank=None, pid=None):
        rank = line.rank if rank is None else rank
        if key not in self.found:
            if len(self.found) >= MOST_KEPT:
                self.full = True
                return
            self.found[key] = fact
            self.ranks_of[key] = set()
            self.processes[key] = set()
            self.times[key] = 0
        self.times[key] += 1
        self.ranks_of[key].add(rank)
        if rank is None:
            self.processes[key].add((pid or line.pid, line.task))

    def close(self, chain):
        raised, line, rank, pid = raised_of(chain)
        if raised:
            form = DIGITS.sub("0", raised.message[:120])
            self.keep(("raised", form, raised.line, raised.kind), raised, line, rank, pid)

    def take_timeout(self, line, one, match):
        # The prefix has the rank of the run, and the message that of the process group.
        rank = int(match["rank"]) if line.rank is None else line.rank
        self.ranks.add(rank)
        if rank not in self.waited:
            seconds = int(match["milliseconds"]) / 1000
            size = match["size"] or match["shape"] or "?"
            number = match["number"] or "?"
            self.waited[rank] = Waited(line.at, rank, match["operation"], number, size, seconds)
            self.clocks.append(line.time)

    def take_mismatch(self, line, *_):
        for each in MISMATCH.pattern.finditer(line.text):
            rank = int(each["rank"])
            waited = Waited(line.at, rank, each["operation"], each["number"], each["shape"] or "?")
            self.waited.setdefault(rank, waited)

    def take_queue(self, line, one, match):
        rank = int(match["rank"]) if line.rank is None else line.rank
        self.ranks.add(rank)
        group = match["group"] or ""
        queue = Queue(rank, int(match["enqueued"]), int(match["completed"]), group)
        self.queues.setdefault(rank, queue)
        if "detected by watchdog" in line.text:
            self.failed.add(rank)

    def take_stack(self, line, one, match):
        self.stack_rank = line.rank

    def read_stack(self, stack):
        waited = self.waited.get(self.stack_rank)
        if waited and not waited.line and not LIBRARY.search(stack[1]):
            self.waited[self.stack_rank] = replace(waited, line=f"{stack[1]}:{stack[2]}")

    def take_joined(self, line, one, match):
        self.joined[int(match["rank"])] = int(match["world"])
        self.remember(replace(line, rank=int(match["rank"])))

    def take_all_joined(self, line, one, match):
        self.all_joined = True

    def take_process(self, line, one, match):
        self.ranks_of_pids[match["pid"]] = int(match["rank"])

    def take_exit(self, line, one, match):
        self.torchrun = self.torchrun or one.word in OF_TORCHRUN
        if self.reported is None:  # The exit codes of torchrun's report are facts of their own.
            self.take_system(line, one, match)

    def take_system(self, line, one, match):
        rank = match.groupdict().get("rank")
        text = line.text.strip()
        key = (one.kind, one.word, DIGITS.sub("0", text)[:100])
        said = Said(line.at, text, one.kind, match[0])
        if key not in self.found and text.endswith(":"):
            self.unfinished = key
        self.keep(key, said, line, int(rank) if rank else None)

    def take_complaint(self, line, one, match):
        self.take_system(line, one, match)
        self.remember(line)

    def take_warning(self, line, one, match):
        self.take_system(line, one, match)

    def take_finished(self, line, one, match):
        """The last two lines of a file count: the end of an epoch is none of the run."""
        latest = self.finished.get(line.file, [])[-1:]
        self.finished[line.file] = [*latest, Finished(line.at, line.text.strip(), line.number)]
        self.remember(line)

    # After the last line.

    def facts(self):
        """-> Excerpt without the entries."""
        for chain in self.tracebacks.open.values():
            self.close(chain)
        for rank in self.latest:
            self.settle(rank)
        excerpt = Excerpt(lines=self.lines)
        for key, fact in self.found.items():
            fact = replace(fact, ranks=self.all_ranks(key), times=self.times[key])
            if key[0] == "raised":
                excerpt.errors.append(fact)
            else:
                excerpt.said.append(fact)
        excerpt.errors.sort(key=self.position)  # They are found where their tracebacks end.
        if not [one for one in excerpt.errors + excerpt.said if one.kind != "warning"]:
            excerpt.said += [*self.mentions.values(), *self.warnings.values()]
        excerpt.waited = [self.waited[rank] for rank in sorted(self.waited)]
        excerpt.queues = [self.queues[rank] for rank in sorted(self.queues)]
        excerpt.exits = [self.exits[rank] for rank in sorted(self.exits)]
        for file, lines in self.finished.items():
            for one in lines:
                excerpt.finished.append(replace(one, after=self.sizes[file] - one.after))
        if self.joined and not self.all_joined:
            excerpt.joined = [Gathered(tuple(sorted(self.joined)), max(self.joined.values()))]
        excerpt.quiet = self.quiet(excerpt)
        return excerpt

    def position(self, fact):
        file, _, number = fact.at.rpartition(":")
        return list(self.sizes).index(file), int(number)

    def all_ranks(self, key):
        """A task of srun is a rank only without torchrun, which has ranks of its own."""
        ranks = self.ranks_of[key] - {None}
        for pid, task in self.processes[key]:
            if pid in self.ranks_of_pids:
                ranks.add(self.ranks_of_pids[pid])
            elif task is not None and not self.torchrun and not self.tasks_differ:
                ranks.add(task)
        return tuple(sorted(ranks))

    def quiet(self, excerpt):
        """The ranks that say nothing of an error, if others waited."""
        waits = [error for error in excerpt.errors if error.kind == "waited"]
        raised = [error for error in excerpt.errors if error.kind != "report"]
        raised += [said for said in excerpt.said if "what():" in said.text]
        unnamed = [fact for fact in raised if not fact.ranks]
        if not self.waited and not waits:
            return []
        spoken = set(self.waited) | self.failed
        for error in excerpt.errors:
            spoken.update(error.ranks)
        for said in excerpt.said:
            if FAILURE.search(said.text):
                spoken.update(said.ranks)
        quiet = []
        # An exception that names no rank may be that of any rank.
        if not self.full and not unnamed:
            for rank in sorted((self.ranks | set(self.last) - {None}) - spoken):
                quiet.append(self.last_words(rank))
        return quiet

    def last_words(self, rank):
        line = self.last.get(rank)
        if line is None:
            return Quiet(rank, None, "")
        clocks = [clock for clock in self.clocks if clock is not None]
        seconds = None
        if line.time is not None and clocks and min(clocks) > line.time:
            seconds = min(clocks) - line.time
        return Quiet(rank, line.at, line.text.strip(), seconds)


def read(paths, names=None):
    """-> Excerpt of all logs of one run. `names`: path -> the name to show."""
    files = files_of(paths)
    names = short_names(files) | (names or {})
    reader = Reader()
    for path in files:
        for line in lines_of(path, names[path]):
            reader.read(line)
    return reader.facts()

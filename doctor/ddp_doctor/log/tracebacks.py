"""Lines -> exceptions: collects tracebacks, also of ranks that print at the same time."""

import re
from dataclasses import dataclass, field

from .facts import Thrown
from .forms import CAUGHT, LIBRARY, REPORT, WAITED
from .lines import Line

TRACEBACK = "Traceback (most recent call last)"
IGNORED = "Exception ignored in"
FATAL = "Fatal Python error: "
FRAME = re.compile(r'\s*(?:[|>]\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?', re.ASCII)
# As the library rich prints it, in a box. A long path is broken into two lines, and is no frame.
RICH_FRAME = re.compile(r"\s*[|\u2502] ((?:[/~]|[A-Z]:\\)\S*\.py):(\d+) in (\S+)")
# What begins with one of these is code, a mark below code, or a part of a box.
NO_MESSAGE = " \t^~|\u2502\u256d\u2570\u2771"
CHAINED = re.compile(
    r"During handling of the above|The above exception was the direct|-- Process (\d+) terminated"
)
AFTER = re.compile(r"\[?[EWIF]\d{3,4} |={8}|\[[A-Z]\d|srun: |slurmstepd: ", re.ASCII)
# The library's own place in front of a message, such as [/pytorch/third_party/gloo/pair.cc:534].
SOURCE_PLACE = re.compile(r"\[\S*/\S+\.(?:cc|cpp):\d+\] ", re.ASCII)
RAY_PROCESS = re.compile(r"\(pid=(\d+), ip=", re.ASCII)
# Messages that say which rank raises them.
OWN_RANK = re.compile(
    r": \[(\d+)\]:? (?:params|is setting up)|: Rank (\d+) successfully reached|"
    r"store based barrier on rank:? (\d+)|was aborted on rank (\d+)",
    re.ASCII,
)
# An exception: its name with its module, or with one of the usual endings, and its message.
MESSAGE = re.compile(
    r"(?:[A-Za-z_]\w*\.[\w.]*|\w*(?:[Ee]rror|Exception|Interrupt|Exit|Warning|Failure|Expired))"
    r"(?:\([\w.]+\))?(?:: |:?$)",
    re.ASCII,
)
# The name of an exception of the script itself, which may be any.
OWN_NAME = re.compile(r"[A-Z]\w*[a-z]\w*(?:: |:?$)", re.ASCII)
RANK_OF_STREAM = 4
# A message may be followed by so many lines that belong to it.
MOST_LINES_AFTER = 25


@dataclass
class Piece:
    """One traceback of a chain."""

    inner: bool = False  # is it the traceback of a loader's worker, printed in that of its rank?
    frames: list = field(default_factory=list)  # (FILE:LINE, function) outside of libraries
    library: list = field(default_factory=list)  # "FILE FUNCTION" of the frames in libraries
    line: Line | None = None  # the line with the message
    message: str = ""
    code: str = ""  # the last line of code, for an exception without a message
    more: list = field(default_factory=list)  # the lines behind the message
    is_fatal: bool = False  # printed by faulthandler: the message first, then the innermost frame


@dataclass
class Chain:
    """A traceback with all that is chained to it."""

    ignored: bool
    rank: int | None  # of the line with "Traceback", if the others have none
    head: str  # what stands in front of "Traceback" in the same line
    parts: list = field(default_factory=list)
    linked: bool = False  # does the next traceback belong to this one?
    ended: bool = False
    process: str = ""  # that mp.spawn names: "-- Process 1 terminated"


class Tracebacks:
    """Collects tracebacks. Those of several ranks may be mixed, if their lines name the ranks."""

    def __init__(self):
        self.open = {}  # stream -> Chain
        self.before = ""
        self.started = None  # the stream of the chain that began on the line before

    def feed(self, line):
        """-> is the line a part of a traceback?, the chains that ended."""
        if self.started and FRAME.match(line.text):
            self.move(line)
        self.started = None
        chain = self.open.get(line.stream)
        ended = []
        inside = False
        if TRACEBACK in line.text:
            ended = self.start(line, chain)
            self.started = line.stream
            inside = True
        elif line.text.startswith(FATAL) and not chain:
            part = Piece(line=line, message=line.text, is_fatal=True)
            self.open[line.stream] = Chain(False, None, "", [part])
            inside = True
        elif chain:
            inside = self.take(line, chain)
            if chain.ended:
                ended = [self.open.pop(line.stream)]
        self.before = line.text
        return inside, ended

    def move(self, line):
        """Some print the rank in front of "Traceback" only, or only behind that line."""
        stream = self.started
        if stream != line.stream and stream[0] == line.file and line.stream not in self.open:
            chain = self.open.pop(stream)
            chain.rank = stream[RANK_OF_STREAM]
            self.open[line.stream] = chain

    def start(self, line, chain):
        ended = []
        inner = "Original Traceback" in line.text or bool(chain and chain.process)
        if chain and not chain.linked and not inner and chain.parts[-1].line:
            ended.append(chain)
            chain = None
        if chain is None:
            head = line.text[: line.text.index(TRACEBACK)]
            if head.strip() == "traceback :":
                head = "  "  # In torchrun's report the lines below are indented.
            chain = Chain(self.before.startswith(IGNORED), None, head)
            self.open[line.stream] = chain
        chain.parts.append(Piece(inner))
        chain.linked = False
        return ended

    def take(self, line, chain):
        text = line.text
        if chain.head and text.startswith(chain.head):
            text = text[len(chain.head) :]
        chained = CHAINED.search(text)
        if chained:
            chain.linked = True
            if chained[1]:
                chain.process = f"process {chained[1]} of mp.spawn"
            return True
        part = chain.parts[-1]
        frame = FRAME.match(text) or RICH_FRAME.match(text)
        if frame and part.line and REPORT.search(part.message):
            # Ray prints the frames of a worker behind the exception that reports it.
            part = Piece(inner=True)
            chain.parts.append(part)
        if frame and (part.is_fatal or not part.line):
            if LIBRARY.search(frame[1]):
                part.library.append(f"{frame[1]} {frame[3]}")
            else:
                place = (f"{frame[1]}:{frame[2]}", frame[3])
                part.frames.insert(0 if part.is_fatal else len(part.frames), place)
            return True
        if part.is_fatal and part.frames and text.startswith(("Thread 0x", "Extension modules")):
            chain.ended = True  # What follows is another thread's.
            return False
        if part.line is None and (not text.strip() or text[0] in NO_MESSAGE):
            if text.strip(NO_MESSAGE):
                part.code = text.strip()
            return True
        # Two ranks that print at the same time mix their lines, so not each line is a message.
        named = MESSAGE.match(text) or (not part.more and OWN_NAME.match(text))
        if part.line is None and named:
            part.line = line
            part.message = SOURCE_PLACE.sub("", text.strip())
            part.more = []
            return True
        part.more.append(text)
        over = AFTER.match(text) or len(part.more) > MOST_LINES_AFTER
        chain.ended = bool(over) and not chain.linked
        return False


def raised_of(chain):
    """-> Thrown without ranks or None, its line, the rank and the process as far as known."""
    parts = [part for part in chain.parts if part.line]
    if not parts or chain.ignored:
        return None, None, None, None
    chosen = parts[0]
    for part in parts:
        if part.inner:
            chosen = part
    frames = frames_of(parts, chosen)
    message = whole_message(chosen)
    then = whole_message(parts[-1]) if parts[-1] is not chosen and not chosen.inner else ""
    if chosen.inner:
        # The rank itself raises this one, which says where the other comes from.
        raised_again = [part.message for part in parts if re.search(CAUGHT, part.message)]
        then = raised_again[0] if raised_again else ""
    # NCCL says on the next lines what kind of error it is.
    text = " ".join([message, *chosen.more[:3]]) if "NCCL" in message else message
    kind = "waited" if WAITED.search(text) else "own"
    if REPORT.search(chosen.message):
        kind = "report"
    line = frames[-1][0] if frames else None
    # The outermost frame is a function of the script, if one is there, and not its call.
    if chosen.inner and len(frames) == 1:
        frames = frames_of(parts, parts[max(0, parts.index(chosen) - 1)])
    outermost = [place for place, function in frames if function != "<module>"]
    outermost += [place for place, _ in frames] or [line]
    raised = Thrown(
        at=chosen.line.at,
        message=message,
        kind=kind,
        line=line,
        called_from=outermost[0] if outermost[0] != line else None,
        then=then,
        process=chain.process,
        library=tuple(dict.fromkeys(chosen.library)),
    )
    rank = chosen.line.rank if chain.rank is None else chain.rank
    said = OWN_RANK.search(message)
    if said and rank is None:
        rank = int(next(filter(None, said.groups())))
    process = RAY_PROCESS.findall("\n".join(part.message for part in chain.parts))
    return raised, chosen.line, rank, process[-1] if process else None


def frames_of(parts, chosen):
    """The frames of the chosen part, or of the nearest one that has some in the script."""
    before = parts[: parts.index(chosen) + 1]
    for part in before[::-1] + parts:
        if part.frames:
            return part.frames
    return []


def whole_message(part):
    """The message, with the lines behind it if it is empty without them."""
    message = part.message
    if not message.partition(":")[2].strip() and part.code and not message.endswith(":"):
        return f"{message} (in: {part.code})"
    more = [text.strip() for text in part.more if text.strip()]
    if "Last error:" in more:
        # NCCL's own words are behind this line.
        return " ".join([message, *more[more.index("Last error:") + 1 :][:1]])
    if not message.endswith(":"):
        return message
    return " ".join([message, *[text[:120] for text in more[:6]]])

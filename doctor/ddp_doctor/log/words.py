"""The excerpt as text: at most fifteen lines, the most telling ones first."""

import re
from itertools import chain

from .forms import REPORT

SIGNALS = {-1: "SIGHUP", -2: "SIGINT", -4: "SIGILL", -6: "SIGABRT", -7: "SIGBUS", -8: "SIGFPE"}
SIGNALS |= {-9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}
NOTHING = "Nothing in this output looks like an error."
CLOSING = "This is an excerpt and not a diagnosis. Give it, with the script, to whoever helps you."
FOLDERS = re.compile(r"^\S*/(?=[^/\s]+\.py:\d+: )")  # they could leave no room for a warning
MESSAGE = 400  # letters of an exception's message that are shown
MOST_LINES = 14  # without the last one


def short(text, size=200, words=""):
    """The text, or its first part. With words: the part that has them."""
    text = " ".join(text.split())
    if len(text) <= size:
        return text
    words = " ".join(words.split())
    start = text.find(words)
    if start + len(words) > size - 3:
        text = "..." + text[max(0, start - 40) :] if start > 43 else text
    return text if len(text) <= size else text[: size - 3] + "..."


def name(ranks):
    """-> "rank 2", "ranks 0 to 3, 5"."""
    runs = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = []
    for first, last in runs:
        if last - first > 1:
            words.append(f"{first} to {last}")
        else:
            words += [str(rank) for rank in range(first, last + 1)]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


def who(fact):
    """-> ", rank 2, 3 times": the ranks, if they are known, and how often it is there if not once.

    Without a rank nothing is said: another form of line may name it.
    """
    words = name(fact.ranks) if fact.ranks else fact.process
    text = f", {words}" if words else ""
    return text if fact.times == max(1, len(fact.ranks)) else f"{text}, {fact.times} times"


def text_of(excerpt):
    """-> the excerpt, ready to print."""
    lines = printed(excerpt) or [NOTHING]
    for entry in excerpt.entries:
        lines.append(f"Entry with these words: {entry.title} ({entry.page})")
    lines.append(CLOSING)
    return "\n".join(lines)


def printed(excerpt):
    """The lines that come from the log. If they are too many, the longest section loses lines."""
    sections = [
        errors(excerpt),
        said(excerpt),
        waiting(excerpt),
        collectives(excerpt),
        quiet(excerpt),
        ended(excerpt),
        finished(excerpt),
    ]
    room = MOST_LINES - len(excerpt.entries)
    while sum(map(len, sections)) > room:
        longest = max(sections, key=len)
        longest.pop()
    return list(chain.from_iterable(sections))


def of_kind(facts, kind):
    return [fact for fact in facts if fact.kind == kind]


def place_of(error):
    """-> " in FILE:LINE, called from FILE:LINE", or what of it is known."""
    if not error.line:
        return ""
    if not error.called_from:
        return f" in {error.line}"
    return f" in {error.line}, called from {error.called_from}"


def errors(excerpt):
    """Exceptions that are about neither time, nor connections, nor a stop from outside."""
    lines = []
    found = of_kind(excerpt.errors, "own")
    for error in found[:3]:
        lines.append(f"Error{who(error)} ({error.at}): {short(error.message, MESSAGE)}")
        if error.then:
            lines.append(f"  then: {short(error.then)}")
        if error.line:
            lines.append(f" {place_of(error)}")
    if len(found) > 3:
        lines.append(f"  {len(found) - 3} more kinds of errors, the next at {found[3].at}")
    if not found:
        lines += reported(excerpt)
    return lines


def library_of(excerpt):
    """The library's frames of the exceptions that errors() shows. They are not printed."""
    found = []
    for error in of_kind(excerpt.errors, "own")[:3]:
        found += error.library
    return " ".join(found)


def reported(excerpt):
    """What a launcher says of an exception, if the exception itself is not there."""
    for error in of_kind(excerpt.errors, "report"):
        # torchrun's exception has no message: its report is in a section of its own.
        if "ChildFailedError" not in error.message:
            words = short(error.message, 250)
            return [f"Reported by a launcher ({error.at}){place_of(error)}: {words}"]
    return []


def said(excerpt):
    """Lines of the system, those of the most telling kinds first."""
    shown = ""
    for error in of_kind(excerpt.errors, "own"):
        shown += short(error.message, MESSAGE)
    lines = []
    for kind, most in (("system", 4), ("complaint", 2), ("mention", 3), ("warning", 3)):
        for one in of_kind(excerpt.said, kind):
            is_new = one.words not in shown and not REPORT.search(one.text)
            if is_new and most:
                where = f"{one.at}, {name(one.ranks)}" if one.ranks else one.at
                text = FOLDERS.sub("", one.text)
                lines.append(f"Said ({where}): {short(text, words=one.words)}")
                most -= 1
    return lines


def waiting(excerpt):
    lines = []
    for error in of_kind(excerpt.errors, "waited")[:2]:
        subject = f"Timed out, had no connection or was stopped{who(error)}"
        words = short(error.message, 250)
        if error.then:
            words += f"; then: {short(error.then, 120)}"
        lines.append(f"{subject} ({error.at}){place_of(error)}: {words}")
    return lines


def collectives(excerpt):
    """Who was in which collective. Ranks that say the same share a line."""
    groups = {}
    queues = {queue.rank: queue for queue in excerpt.queues}
    for waited in excerpt.waited:
        words = call(waited) + numbers(queues.pop(waited.rank, None))
        groups.setdefault(words, []).append(waited.rank)
    for queue in queues.values():
        words = "no timeout of its own" + numbers(queue)
        groups.setdefault(words, []).append(queue.rank)
    lines = []
    for words, ranks in groups.items():
        lines.append(f"Collectives, {name(ranks)}: {words}")
    return lines[:5]


def call(waited):
    words = f"{waited.operation} number {waited.number}, size {waited.size}"
    if waited.seconds:
        words += f", timeout {duration(waited.seconds)}"
    if waited.line:
        words += f", in {waited.line}"
    return words


def numbers(queue):
    if queue is None:
        return ""
    group = "" if queue.group in ("", "default_pg") else f" in the group {queue.group}"
    return f"; last enqueued {queue.enqueued}, completed {queue.completed}{group}"


def duration(seconds):
    return f"{seconds:g} seconds" if seconds < 120 else f"{seconds / 60:.3g} minutes"


def quiet(excerpt):
    """The ranks without an error, and the last lines of two of them."""
    lines = []
    if excerpt.quiet:
        ranks = [one.rank for one in excerpt.quiet]
        lines.append(f"No line of {name(ranks)} has a timeout or an exception")
    with_words = [one for one in excerpt.quiet if one.at]
    for one in with_words[:2]:
        before = ""
        if one.seconds:
            before = f", about {duration(one.seconds)} before the first timeout"
        words = short(one.text, 120)
        lines.append(
            f"  last line with rank {one.rank}, apart from PyTorch's ({one.at}{before}): {words}"
        )
    for joined in excerpt.joined:
        if len(joined.ranks) < joined.world:
            there = f"{len(joined.ranks)} of {joined.world} processes"
            lines.append(f"{there} said that they are there: {name(joined.ranks)}")
    return lines


def ended(excerpt):
    """How processes ended: torchrun's report, and the lines of other launchers."""
    groups = {}
    for one in excerpt.exits:
        groups.setdefault(one.code, []).append(one)
    lines = []
    for code, exits in groups.items():
        ranks = name([one.rank for one in exits])
        words = ""
        if exits[0].signal:
            processes = ", ".join(one.pid for one in exits[:4])
            words = f", {exits[0].signal} received by PID {processes},"
        elif code in SIGNALS:
            words = f" ({SIGNALS[code]})"
        lines.append(f"Ended, {ranks}: exit code {code}{words} in torchrun's report")
    quoted = of_kind(excerpt.said, "exit")
    if excerpt.exits:
        quoted = [one for one in quoted if "local_rank: " not in one.text]
    for one in quoted[:3]:
        lines.append(f"Ended ({one.at}): {short(one.text, words=one.words)}")
    return lines


def finished(excerpt):
    lines = []
    for one in excerpt.finished[-2:]:
        after = f"; {one.after} lines follow" if one.after else ""
        words = short(one.text, 120)
        lines.append(f"Finished, by its own words ({one.at}{after}): {words}")
    return lines


def looks_wrong(excerpt):
    """Is there anything but a finished run?"""
    failed = [one for one in excerpt.exits if one.code]
    harmless = ("warning", "mention") if excerpt.finished else ("warning",)
    said = [one for one in excerpt.said if one.kind not in harmless]
    return bool(excerpt.errors or said or excerpt.waited or failed)

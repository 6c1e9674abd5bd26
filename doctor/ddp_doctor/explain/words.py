"""`ddp-doctor explain`: what the logs of a failed run say, and what to do next."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from .decide import ABORTED, STOPPED, decide, had_ended, name, size_of
from .events import FAILURES
from .log import read_logs
from .match import OUTCOMES, RULES

# What a rank did, by the role of its message.
DID = {
    "cause": "failed",
    "killed": "ended from outside",
    "lost": "lost the connection",
    "waited": "waited",
}
# Outcomes of a rank that is missing: its last line tells what it did instead.
MISSING = ("silent", "behind", "absent", "left")
ABOUT_MISSING = [OUTCOMES[name_of] for name_of in MISSING]


class Values(dict):
    """The holes of a sentence; what the log does not say is a question mark."""

    def __missing__(self, key):
        return "?"


def explain(paths, names=None):
    """Read the logs of one run -> a dict with what they say. `names`: path -> the name to show.

    exit: 0 without a failure, 1 with a named cause, 2 without one. ranks: those that are the
    cause, [] without a failure, None if unknown. line: FILE:LINE of the user's script. what, means,
    next, sure: sentences. telling: [file, line number, text]. states: [[ranks], text].
    """
    found = decide(read_logs(paths, names or {}))
    log = found.log
    place = place_of(found)
    values = values_of(found, place)
    meaning, advice = sentences_of(found, values)
    out = {
        "exit": exit_code(found),
        "what": found.rule.title.format_map(values),
        "ranks": found.ranks,
        "line": place,
        "cause": cause_of(found, place),
        "states": states_of(found),
        "follows": follows_of(found),
        "telling": telling_of(found),
        "means": meaning,
        "also": notes_of(found),
        "next": advice,
        "sure": sure_of(found),
        "others": found.event.others if found.event else [],
        "page": page_of(found),
    }
    if log.blank:
        out["exit"] = 2
    return out


def page_of(found):
    if found.event and found.event.page:
        return found.event.page
    return found.values.get("page") or found.rule.page or None


def exit_code(found):
    if found.ranks == []:
        return 0
    if found.ranks or found.rule.role == "setup" or found.rule.ranks == "none":
        return 1
    return 2


# 1. Which rank, and where in the user's script.


def place_of(found):
    """The user's line of the cause, or of the wrong call."""
    roots = found.ranks or []
    if found.event and found.event.where and (not roots or found.event.rank in [*roots, None]):
        return found.event.where
    for rank in roots:
        if rank in found.log.stacks:
            return found.log.stacks[rank]
    for event in found.events:
        if event.rank in roots and event.where:
            return event.where
    return None


def cause_of(found, place):
    log = found.log
    if found.ranks == []:
        ended = any(tail.end for tail in log.tails.values())
        return "none; no rank failed" if ended else "none is seen in this log"
    waiting = [event.where for event in found.events if event.where]
    waiting += [log.stacks[rank] for rank in sorted(log.stacks)]
    if found.ranks:
        words = name(found.ranks)
        if place:
            return f"{words}, {place}"
        if waiting:
            return f"{words} (its line is not in the log; the others were at {waiting[0]})"
        return words
    words = "unknown; this log does not show which rank it was"
    if not log.ranks:
        process = "of this report" if log.torn else "that printed this"
        words = f"the process {process} (no line names a rank)"
    if found.rule.ranks == "none":
        words = "no single rank"
    words = found.rule.nobody or words
    if found.rule.role == "setup":
        words = "no rank"
    if place:
        return f"{words}, {place}"
    return f"{words}; seen at {waiting[0]}" if waiting else words


def values_of(found, place):
    """What stands in the holes of the sentences."""
    log = found.log
    values = Values(log.values)
    values.update(found.values)
    if "size" in values:
        values["size"] = size_of(values)
    if found.event:
        values.update(found.event.fields)
        values["message"] = short(found.event.message, 300)
        values["during"] = f" {found.event.during}" if found.event.during else ""
    roots = found.ranks or []
    reporting = set()
    for event in found.events:
        if found.event and event.rule is found.event.rule and event.rank is not None:
            reporting.add(event.rank)
    one = len(roots or [0]) == 1
    values["was"] = "was" if one else "were"
    values["has"] = "has" if one else "have"
    values["verb"] = "is" if one else "are"
    values["ranks"] = "a rank that the log does not name"
    if roots or reporting:
        values["ranks"] = name(roots or sorted(reporting))
    others = sorted(log.ranks - set(roots)) if found.ranks != [] else []
    values["others"] = name(others) if others else "the others"
    values["where"] = place or "a line that is not in the log"
    return values


# 2. What each rank did last.


def states_of(found):
    """-> [[ranks], text]: ranks that did the same together, at most five rows, roots first."""
    if found.ranks == []:
        return []
    rows = rows_of(found, words=True)
    if len(rows) > 5 and not found.ranks:
        rows = rows_of(found, words=False)
    roots = set(found.ranks or [])
    rows.sort(key=lambda row: roots.isdisjoint(row[0]))
    if len(rows) <= 5:
        return rows
    rest = []
    for ranks, _ in rows[4:]:
        rest += ranks
    return [*rows[:4], [sorted(rest), "other states; see their own lines"]]


def rows_of(found, words):
    groups = {}
    for rank in sorted(found.log.ranks):
        groups.setdefault(state_of(found, rank, words), []).append(rank)
    return [[ranks, text] for text, ranks in groups.items()]


def state_of(found, rank, last_words):
    """What a rank did last; with its last line if it may be the cause."""
    log = found.log
    words = []
    known = log.collectives.get(rank, {})
    own = [event for event in found.events if event.rank == rank and event.rule.role in FAILURES]
    if "sequence" in known:
        own = [event for event in own if event.rule.role not in ("waited", "vague")]
    if own:
        event = max(own, key=lambda one: one.rule.weight)
        place = f" {event.during}" if event.during else ""
        place += f" at {event.where}" if event.where else ""
        words.append(f"{DID.get(event.rule.role, 'reported')}{place}: {short(event.message, 110)}")
    if "sequence" in known:
        words.append(waited_words(log, rank, known))
    elif "enqueued" in known:
        words.append(
            f"had enqueued {known['enqueued']} and completed {known['completed']}, "
            "no timeout of its own"
        )
    code = log.exits.get(rank)
    if code in STOPPED and not own:
        words.append("stopped by the launcher afterwards (SIGTERM)")
    elif code is not None:
        words.append(f"exit code {code}")
    last = log.last_words.get(rank)
    blamed = found.ranks is None or rank in found.ranks
    if last and last_words and blamed and not own:
        words.append(
            f'last printed "{short(last.text, 120)}" ({last.file}:{last.number}{ago(log, last)})'
        )
    return "; ".join(words) or "printed nothing that tells more"


def follows_of(found):
    """One sentence on the ranks that are not the cause."""
    if not found.ranks:
        return ""
    after = set()
    for event in found.events:
        if event.rule.role in ("waited", "lost", "vague"):
            after.add(event.rank)
    after |= {rank for rank, code in found.log.exits.items() if code in (*STOPPED, *ABORTED)}
    after |= set(found.log.collectives)
    after = sorted(after - set(found.ranks) - {None})
    if not after:
        return ""
    return f"What {name(after)} reported came afterwards and is a consequence."


def waited_words(log, rank, known):
    minutes = int(known["timeout"]) / 60000
    place = f" at {log.stacks[rank]}" if rank in log.stacks else ""
    return (
        f"waited {round(minutes, 1):g} minutes in {known['operation']} number {known['sequence']} "
        f"({size_of(known)} elements){place}"
    )


def ago(log, last):
    """How long before the first timeout a line was printed."""
    times = [known["line"].time for known in log.collectives.values()]
    times = [time for time in times if time is not None]
    if last.time is None or not times or min(times) <= last.time:
        return ""
    minutes = int((min(times) - last.time) / 60 + 0.5)
    return f", {minutes} minutes before the timeout"


# 3. The lines that tell it.


def telling_of(found):
    """At most four lines as they stand in the log -> [file, line number, text]."""
    log = found.log
    lines = []
    if found.ranks == []:
        return []
    if found.event:
        lines.append((found.event.line, found.event.message))
        # NCCL and CUDA say first what failed, and Python only that something did.
        for event in found.events:
            same = event.rank == found.event.rank and event.line is not found.event.line
            if same and len(lines) < 2 and event.rule.role in ("cause", "setup", "killed", "vague"):
                lines.append((event.line, event.message))
    for rank in [*(found.ranks or []), None]:
        complaint = log.complaints.get(rank)
        if complaint and len(lines) < 2:
            lines.append((complaint, complaint.text))
    if not lines and found.rule is OUTCOMES["complaint"]:
        complaint = next(iter(log.complaints.values()))
        lines.append((complaint, complaint.text))
    timeouts = [known["line"] for known in log.collectives.values()]
    for line in sorted(timeouts, key=lambda line: line.position):
        if len(lines) < 2:
            lines.append((line, line.text))
    unique = {}
    for line, message in lines:
        unique.setdefault((line.file, line.number), short(message, 220))
    return [[file, number, text] for (file, number), text in unique.items()]


def notes_of(found):
    """What else the log says that bears on it -> at most three [file, line, sentence, page]."""
    notes = []
    for fact, line, fields in found.log.hints:
        if fact.bears_on not in ("", found.rule.role):
            continue
        values = Values(found.log.values)
        values.update(fields)
        notes.append((line, fact.meaning.format_map(values), ""))
    # A warning matters to somebody who wonders about it, and not to a run that failed.
    for event in found.notes if found.ranks == [] else []:
        sentence = f"{event.rule.title}. {event.rule.meaning}"
        notes.append((event.line, sentence, event.rule.page))
    unique = {}
    for line, sentence, page in notes:
        unique.setdefault(sentence, [line.file, line.number, sentence, page])
    return list(unique.values())[:3]


# 4. What it means, what to do, and how sure that is.


def sentences_of(found, values):
    rule = found.rule
    from_page = bool(rule.length)
    meaning = rule.meaning if from_page else capital(rule.meaning.format_map(values))
    advice = rule.next if from_page else rule.next.format_map(values)
    alone = found.ranks and len(found.ranks) == 1 and len(found.log.ranks) > 1
    if rule is OUTCOMES["exception"] and alone:
        advice += " Look at what only this rank has: its part of the data, its node, its device."
    if found.ranks and len(found.ranks) > 1 and rule.role == "cause":
        meaning += " It is the same on all of these ranks, so no single rank is special."
    line = found.event.line if found.event else None
    ended = line and had_ended(found.log, line.file, line.position)
    if ended and rule is not OUTCOMES["after_the_end"]:
        meaning += " A line before it says that the training had ended, so its results are there."
    missing = found.event and found.event.rule.role == "waited" and rule.role == "waited"
    if rule not in ABOUT_MISSING and not (missing and found.ranks):
        return meaning, advice
    last = last_words_of(found)
    if last is None:
        return meaning, advice
    if last is found.log.last_words.get(None):
        meaning += (
            f" Perhaps this was its last line, which names no rank: "
            f'"{short(last.text, 100)}" ({last.file}:{last.number}).'
        )
    for activity in RULES["activities"]:
        if re.search(activity["pattern"], last.text, re.I):
            did = capital(activity["meaning"].format_map(values))
            return f"{meaning} {did}", activity["next"]
    return meaning, advice


def last_words_of(found):
    """What the first of the missing ranks that printed something printed last."""
    for rank in [*found.ranks, None]:
        if rank in found.log.last_words:
            return found.log.last_words[rank]
    return None


def sure_of(found):
    """Nothing is certain by default: a known message has a usual reason, not a certain one."""
    rule = found.rule
    if found.ranks == []:
        return ""
    if rule.sure:
        return rule.sure
    if rule.role == "vague":
        return "no; this message says that something failed, and not what"
    if rule.role == "setup":
        return "the message is known, and no single rank is to blame; the reason is the usual one"
    if not found.ranks:
        return "the message is known; which rank was first is not in this log"
    known = "line" if rule is OUTCOMES["exception"] else "message"
    if len(found.ranks) > 1:
        return f"the {known}, yes; several ranks raised it, so its reason may be what they share"
    if rule is OUTCOMES["exception"]:
        return "the rank and the line, yes; the reason is in the script"
    return "the rank and the message, yes; the reason is the usual one of this message"


# 5. Text, files, exit code.


def capital(text):
    return text[:1].upper() + text[1:]


def short(text, size=170):
    text = " ".join(text.split())
    return text if len(text) <= size else text[: size - 3] + "..."


def text_of(found):
    """The explanation on at most twenty lines."""
    lines = [f"What happened: {found['what']}", f"Root cause: {found['cause']}"]
    for ranks, state in found["states"]:
        lines.append(f"  {name(ranks)}: {short(state, 330)}")
    for file, number, text in found["telling"]:
        lines.append(f"Telling line: {file}:{number}: {text}")
    if found["follows"]:
        lines.append(f"  {found['follows']}")
    lines.append(f"This means: {found['means']}")
    for file, number, sentence, page in found["also"]:
        lines.append(f"Also: {file}:{number}: {sentence}" + (f" ({page})" if page else ""))
    lines.append(f"Next: {found['next']}")
    if found["sure"]:
        others = "".join(f"; it could also be: {title}" for title in found["others"][:2])
        lines.append(f"Certain? {found['sure']}{others}")
    if found["page"]:
        lines.append(f"Read: {found['page']}")
    return "\n".join(lines)


def files_of(paths, typed):
    """The log files of one run. A folder stands for all files in it, "-" for the file `typed`."""
    files = []
    for path in paths:
        if path == "-":
            files.append(typed)
        elif Path(path).is_dir():
            files += sorted(one for one in Path(path).rglob("*") if is_log(one))
        else:
            files.append(Path(path))
    return files


def is_log(path):
    return path.is_file() and path.suffix != ".json"


def run(paths, json_file=None):
    """Print the explanation -> 0 without a failure, 1 with a named cause, 2 without one."""
    paths = paths or ["-"]
    with tempfile.TemporaryDirectory() as folder:
        typed = Path(folder, "stdin.log")  # Logs are read twice, and standard input only once.
        if "-" in paths:
            typed.write_bytes(sys.stdin.buffer.read())
        found = explain(files_of(paths, typed), {typed: "stdin"})
    # Files below the current folder are shown as one would type them.
    print(text_of(found).replace(os.path.join(os.getcwd(), ""), ""))
    if json_file:
        text = json.dumps(found, indent=1, ensure_ascii=False)
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    return found["exit"]

"""The entries of the messages' pages whose words stand in the printed lines.

`messages.json` is made from the pages docs/failures/messages by tools/messages_table.py. An entry
that has the words of a line may still not apply.
"""

import json
import re
from pathlib import Path

from .facts import Entry

TABLE = Path(__file__).parent / "messages.json"
HOLE = re.compile(r"\{(\w*)\}")
MOST_ENTRIES = 2


def entries_of(printed, library=""):
    """-> at most two entries, those with the most words first.

    library: frames that are not printed. Only an entry's conditions may name them.
    """
    text = " ".join(printed.split())
    whole = f"{text} {library}"
    best = {}  # page -> (worth, Entry)
    for row in json.loads(TABLE.read_text(encoding="utf-8")):
        if any(stands_one(whole, words) for words in row["without"]):
            continue
        for words, role in row["messages"]:
            if stands(text, words, row["where"]):
                worth = worth_of(whole, row, words, role)
                known = best.get(row["page"])
                if known is None or worth > known[0]:
                    best[row["page"]] = (worth, Entry(row["title"], row["page"], words))
    ordered = sorted(best.values(), key=lambda pair: pair[0], reverse=True)
    return [entry for _, entry in ordered[:MOST_ENTRIES]]


def worth_of(text, row, words, role):
    """Which of two entries says more? The one with more words, if neither lacks anything."""
    is_report = role in ("frame", "note")  # of a launcher, about another message
    is_complete = all(stands_one(text, others) for others in row["with"])
    letters = len(HOLE.sub("", words))
    return not is_report, is_complete, role != "vague", letters


def stands_one(text, alternatives):
    return any(words in text for words in alternatives)


def stands(text, words, conditions):
    """Do the words stand in the text, with anything in their holes that meets the conditions?"""
    parts = HOLE.split(words)
    if not all(part in text for part in parts[::2]):
        return False  # Nearly all messages end here, and cost no pattern.
    for match in re.finditer(pattern_of(parts), text):
        fields = match.groupdict()
        if all(holds(fields, condition) for condition in conditions):
            return True
    return False


def pattern_of(parts):
    """The words of a message and the names of its holes, in turn -> a pattern."""
    pattern = r"(?<!\w)" if parts[0][:1].isalnum() else ""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            pattern += re.escape(part)
        elif part and f"?P<{part}>" not in pattern:
            pattern += f"(?P<{part}>.{{1,200}}?)"
        else:
            pattern += ".{0,200}?"
    is_whole_word = not parts[-1] or parts[-1][-1].isalnum()
    return pattern + r"(?!\w)" if is_whole_word else pattern


def holds(fields, condition):
    """A condition is a name, one of = < >, and a number or another name."""
    name, sign, limit = condition
    number = fields.get(name, "")
    limit = fields.get(limit, limit)
    if not number.isdigit() or not limit.isdigit():
        return True
    difference = int(number) - int(limit)
    if sign == "=":
        return difference == 0
    return difference > 0 if sign == ">" else difference < 0

"""The rules and the table of messages: what a line, or a whole traceback, can match.

`messages.json` is made from the pages docs/messages*.md by tools/messages_table.py. All else, such
as the forms of prefixes and of launchers' reports, is in `rules.json`. The site reads both
files, too, so a pattern may use only what the regular expressions of Python and JavaScript share.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
RULES = json.loads((FOLDER / "rules.json").read_text(encoding="utf-8"))
ENTRIES = json.loads((FOLDER.parent / "messages.json").read_text(encoding="utf-8"))
# What a line means for the rank that printed it, and which meaning outranks which.
WEIGHTS = RULES["weights"]
HOLE = re.compile(r"(\{\w*\})")
DIGIT = re.compile(r"\d")


@dataclass
class Rule:
    """What is known about one message, or one outcome: its role, its meaning, the next step."""

    title: str
    role: str = ""
    weight: int = 0
    meaning: str = ""
    next: str = ""
    page: str = ""
    sure: str = ""
    nobody: str = ""
    # Of messages only: the fixed part's length, the conditions, and which ranks are concerned.
    length: int = 0
    conditions: list = field(default_factory=list)
    where: list = field(default_factory=list)
    ranks: str = ""
    kind: str = ""


def outcome(words):
    """A rule of rules.json that stands for an outcome and not for a message."""
    rule = Rule(**words)
    rule.weight = rule.weight or WEIGHTS.get(rule.role, 0)
    return rule


OUTCOMES = {name: outcome(words) for name, words in RULES["outcomes"].items()}
EXIT_CODES = {}
for _words in RULES["exit_codes"]:
    for _code in _words.pop("codes"):
        EXIT_CODES[_code] = outcome(_words)


# 1. The facts: lines of launchers and watchdogs, progress, a normal end.


@dataclass
class Fact:
    role: str
    pattern: re.Pattern
    meaning: str = ""
    code: int | None = None
    needs: str = ""  # if set: tried on every line that has these characters
    bears_on: str = ""  # if set: its meaning bears only on causes of this role


FACTS = []
for _words in RULES["facts"]:
    _pattern = re.compile(_words["pattern"], re.ASCII)
    FACTS.append(Fact(**{**_words, "pattern": _pattern}))


def facts_of(text, facts):
    """Those of the facts that a line matches, in the order of the rules -> [(fact, fields)]."""
    found = []
    for fact in facts:
        if fact.needs in text:
            match = fact.pattern.search(text)
            if match:
                found.append((fact, filled(match)))
    return found


def filled(match):
    return {name: value for name, value in match.groupdict().items() if value is not None}


# 2. The messages of the pages. To try them all on each line would take too long, so each is filed
# under one whole word that it needs: the one that the fewest other messages have.


def pattern_of(words):
    """A message with holes as a pattern; a blank stands for any white space."""
    parts = []
    seen = set()
    for part in HOLE.split(words):
        name = part[1:-1]
        if not HOLE.fullmatch(part):
            parts.append(r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)))
        elif name and name not in seen:
            seen.add(name)
            parts.append(f"(?P<{name}>.{{1,200}}?)")
        else:
            parts.append(".{0,200}?")
    # A hole at the end would otherwise take one character of a number or a name.
    if HOLE.fullmatch(words[words.rfind("{") :]):
        parts.append(r"(?!\w)")
    return re.compile("".join(parts), re.DOTALL | re.ASCII)


def whole_words(words):
    # A word that touches a hole may go on in the log.
    marked = HOLE.sub("\0", words)
    return re.findall(r"(?<![\w\0])[A-Za-z_]\w+(?![\w\0])", marked, re.ASCII)


def rarest_word(words, counts):
    return min(whole_words(words), key=lambda word: (counts[word], -len(word)), default=None)


def rule_of(entry, words, role):
    rule = Rule(entry["title"], role, WEIGHTS.get(role, 0), entry["meaning"], entry["next"])
    rule.page = entry["page"]
    rule.length = len(HOLE.sub("", words))
    rule.conditions = [(True, words) for words in entry["with"]]
    rule.conditions += [(False, words) for words in entry["without"]]
    rule.where = entry["where"]
    rule.ranks = entry.get("ranks", "")
    rule.kind = entry["kind"]
    return rule


def build():
    """-> {word: [(rule, pattern)]}"""
    counts = {}
    for entry in ENTRIES:
        for words, _ in entry["messages"]:
            for word in whole_words(words):
                counts[word] = counts.get(word, 0) + 1
    filed = {}
    for entry in ENTRIES:
        for words, role in entry["messages"]:
            pair = (rule_of(entry, words, role), pattern_of(words))
            filed.setdefault(rarest_word(words, counts), []).append(pair)
    return filed


FILED = build()
WORD = re.compile(r"\w+", re.ASCII)


def candidates_of(text):
    """The messages that have their word in a text, and must still be tried -> [(rule, pattern)]."""
    candidates = list(FILED.get(None, []))
    for word in sorted(FILED.keys() & WORD.findall(text)):
        candidates += FILED[word]
    return candidates


def messages_of(text, candidates=None):
    """The messages whose words a text has, whatever else is in the log -> [(rule, fields)]."""
    if candidates is None:
        candidates = candidates_of(text)
    found = []
    for rule, pattern in candidates:
        match = pattern.search(text)
        if match:
            found.append((rule, filled(match)))
    return found


# 3. Conditions: words that must, or must not, stand somewhere else in the same log.


def all_conditions():
    found = set()
    for entry in ENTRIES:
        for alternatives in entry["with"] + entry["without"]:
            found.update(alternatives)
    return found


CONDITIONS = all_conditions()


def best_first(found, seen):
    """Those messages whose conditions hold, the one with the most fixed words first."""
    known = [(rule, fields) for rule, fields in found if holds(rule, fields, seen)]
    return sorted(known, key=lambda pair: (-pair[0].length, -pair[0].weight, pair[0].title))


def holds(rule, fields, seen):
    for wanted, alternatives in rule.conditions:
        if wanted == seen.isdisjoint(alternatives):
            return False
    for name, sign, limit in rule.where:
        have = fields.get(name)
        if have is not None and not compare(have, sign, fields.get(limit, limit)):
            return False
    return True


def compare(have, sign, limit):
    try:
        difference = float(have) - float(limit)
    except ValueError:
        return have == limit
    if sign == "=":
        return difference == 0
    return difference > 0 if sign == ">" else difference < 0

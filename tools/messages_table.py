"""Write the table of messages that `ddp-doctor log` reads, from docs/failures/messages.

python -m tools.messages_table            write doctor/ddp_doctor/log/messages.json
python -m tools.messages_table --check    exit code 1 if the file is not in step with the pages
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "doctor/ddp_doctor/log/messages.json"
FOLDER = "docs/failures/messages"
PAGES = ("launch", "hangs", "training", "devices")
ROLES = "cause setup killed waited lost vague frame note".split()
# Links to threads in parentheses, which are sources and not a part of the sentence.
SOURCES = r"\s*\((?:threads?\s+)?(?:\[(?:thread|\d+)\]\([^)]*\)(?:,\s+)?)+\)"
VERSION = r"(until|since)(?: NCCL| torch)? [\d.]+"


class BadBlock(Exception):
    """A block that breaks the form. The text begins with the page and the line."""


def read_page(path):
    """-> a row for each block of messages of one page, in order."""
    entries = []
    entry = None
    block = False
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        place = f"{path.name}:{number}"
        if block and line == "```":
            block = False
        elif block:
            read_line(entry["blocks"][-1], line, place)
        elif line.startswith("```messages"):
            start_block(entry, line, place)
            block = True
        elif line.startswith("#"):
            entry = new_entry(path, line)
            entries.append(entry)
        elif entry:
            entry["text"].append(line)
    if block:
        raise BadBlock(f"{path.name}: the last block is not closed")
    rows = []
    for one in entries:
        rows += rows_of(one, path)
    return rows


def new_entry(path, line):
    heading = plain(line.lstrip("#").strip())
    anchor = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
    return {"title": heading, "page": f"{FOLDER}/{path.name}#{anchor}", "text": [], "blocks": []}


def start_block(entry, line, place):
    words = line.split()
    if entry is None:
        raise BadBlock(f"{place}: a block before the first heading")
    if len(words) != 3 or words[1] not in ROLES:
        raise BadBlock(f"{place}: not ```messages ROLE KIND: {line}")
    block = {"messages": [], "with": [], "without": [], "where": []}
    entry["blocks"].append(block | {"role": words[1], "kind": words[2]})


def read_line(block, line, place):
    """Add a condition or a message to its block."""
    word, colon, rest = line.partition(": ")
    if colon and word in ("with", "without"):
        block[word].append(rest.split(" | "))
        return
    if colon and word == "ranks":
        block["ranks"] = rest
        return
    if colon and word == "where":
        condition = rest.split()
        if len(condition) != 3 or condition[1] not in "=<>":
            raise BadBlock(f"{place}: not where: NAME = NUMBER: {line}")
        block["where"].append(condition)
        return
    words, _, options = line.partition("  ")
    if not words.strip():
        raise BadBlock(f"{place}: a message without words: {line!r}")
    role = block["role"]
    unknown = re.sub(VERSION, "", options).split()
    for option in unknown:
        if option not in ROLES:
            raise BadBlock(f"{place}: neither a role nor a version: {option}")
        role = option
    block["messages"].append([words, role])


def rows_of(entry, path):
    """The blocks of an entry, each with the meaning and the next step of the entry's text."""
    if not entry["blocks"]:
        return []
    paragraphs = "\n".join(entry["text"]).strip().split("\n\n")
    meaning = plain(paragraphs[0])
    steps = [one for one in paragraphs if one.startswith("**Do:**")]
    if meaning.startswith("Do:") or not steps:
        raise BadBlock(f"{path.name}: {entry['title']}: no meaning or no **Do:**")
    step = plain(steps[0]).removeprefix("Do: ")
    rows = []
    for block in entry["blocks"]:
        row = {"title": entry["title"], "page": entry["page"]} | block
        rows.append(row | {"meaning": meaning, "next": step})
    return rows


def plain(text):
    """A paragraph without its links and marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", without_emphasis(text))
    return " ".join(text.replace("`", "").split())


def without_emphasis(text):
    """A paragraph without its sources and stars. Its links and code stay."""
    text = re.sub(SOURCES, "", text).replace("**", "")
    return re.sub(r"(?<![\w*])\*(\w[^*]*)\*(?![\w*])", r"\1", text)


def table():
    entries = []
    for name in PAGES:
        entries += read_page(ROOT / f"{FOLDER}/{name}.md")
    rows = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def main():
    try:
        text = table()
    except BadBlock as error:
        print(error, file=sys.stderr)
        return 2
    if "--check" in sys.argv:
        return int(text != TABLE.read_text(encoding="utf-8"))
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

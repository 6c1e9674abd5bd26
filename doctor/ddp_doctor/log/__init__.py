"""The verb `log`: an excerpt of what the ranks have printed. It quotes, and judges nothing."""

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .entries import entries_of
from .facts import Excerpt
from .read import read
from .words import library_of, looks_wrong, printed, text_of


class NoText(Exception):
    """The files have no text."""


def excerpt_of(paths, names=None) -> Excerpt:
    """Read the logs of one run: files, or folders of files. `names`: path -> the name to show.

    Raises NoText if there is no line in them, and OSError if a file cannot be read.
    """
    excerpt = read(paths, names)
    if not excerpt.lines:
        raise NoText
    excerpt.entries = entries_of("\n".join(printed(excerpt)), library_of(excerpt))
    return excerpt


def run(paths, json_file=None):
    """Print the excerpt -> 0 if nothing looks like an error, else 1. "-" is standard input."""
    paths = paths or ["-"]
    with tempfile.TemporaryDirectory() as folder:
        typed = Path(folder, "stdin.log")  # Logs are read twice, and standard input only once.
        if "-" in paths:
            typed.write_bytes(sys.stdin.buffer.read())
        files = [typed if path == "-" else Path(path) for path in paths]
        excerpt = excerpt_of(files, {typed: "stdin"})
    code = int(looks_wrong(excerpt))
    # Files below the current folder are shown as one would type them.
    print(text_of(excerpt).replace(os.path.join(os.getcwd(), ""), ""))
    if json_file:
        whole = {"exit": code, **asdict(excerpt)}
        text = json.dumps(whole, indent=1, ensure_ascii=False)
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    return code

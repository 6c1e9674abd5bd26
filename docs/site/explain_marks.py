"""The code and the links in the sentences that `explain` says of a message.

messages.json has these sentences as a terminal prints them. The field of the site shows them with
the marks of the page that they come from.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from tools.messages_table import PAGES, plain, without_emphasis  # noqa: E402

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")


def marked_sentences() -> dict[str, str]:
    """{paragraph without marks: the same with `code` and [links](docs/page.md)}"""
    found = {}
    for name in PAGES:
        text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        for paragraph in re.split(r"\n\s*\n", text):
            with_marks = marked(paragraph, name).removeprefix("Do: ")
            without = plain(paragraph).removeprefix("Do: ")
            if with_marks != without:
                found[without] = with_marks
    return found


def marked(paragraph: str, page: str) -> str:
    def link(found: re.Match) -> str:
        words, target = found.groups()
        if target.startswith("#"):
            target = f"{page}.md{target}"
        local = re.fullmatch(r"[\w/]+\.md(#[\w-]+)?", target)
        return f"[{words.replace('`', '')}](docs/{target})" if local else words

    return " ".join(LINK.sub(link, without_emphasis(paragraph)).split())

"""What a page says on the site in other words than on GitHub: the words are in passages.yml.

GitHub shows a still picture where the site has the player, and a reader of the site may have no
copy of the repository. Passages are found by their place and not by their words, so that this works
for the Chinese pages, too. A place that is not there is left alone.
"""

import json
import re
from pathlib import Path

import yaml

WORDS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
PLAYER = r'<div class="player"'
HERE = rf"On the site,(?:(?!\n\n)[\s\S])*(?=\n\n{PLAYER})"  # a sentence on what stands below it
PARAGRAPH = r"(?:(?![-#<`|]).+\n)+"
WAYS = r"(?:- \*\*.+\n(?:  .+\n)*){3,4}"  # the list; the Chinese one has one more
# The website that explain.md speaks of is this one.
ANOTHER_PAGE = r"Without Python, open the page of (?:(?!\n\n)[\s\S])*"


def site_words(page: str, text: str, repository: str) -> str:
    """The text of a page as the site shows it. repository: its address, or nothing."""
    if not page.startswith("notebooks/") or not text.startswith("{"):  # a script
        return words_of_page(page, text, repository)
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            words = words_of_page(page, "".join(cell["source"]), repository)
            cell["source"] = words.splitlines(keepends=True)
    return json.dumps(notebook)


def words_of_page(page: str, text: str, repository: str) -> str:
    for language, words in WORDS["other_language"].items():
        text = re.sub(rf"\A(<!--.*-->\n)?\[{language}\]", rf"\1{words}: [{language}]", text)
    if page in WORDS["before_player"]:
        text = before_the_player(text, WORDS["before_player"][page])
    if page in WORDS["here"]:
        text = re.sub(HERE, lambda _: WORDS["here"][page], text)
    if page in WORDS["after_player"]:
        text = after_the_player(text, WORDS["after_player"][page])
    if page in WORDS["no_player"]:
        words = f"<p>{WORDS['no_player'][page]}</p>"
        text = re.sub(rf"({PLAYER}.*\n<img .*\n)(<p>[\s\S]*?</p>\n)?", rf"\1{words}\n", text)
        text = re.sub(rf"({PLAYER}.*\n\n!\[.*\n)", rf"\1\n{words}\n", text)
    if page in WORDS["get"]:
        text = three_ways_first(text, WORDS["ways"][page])
        text = how_to_get_it(text, WORDS["get"][page], repository)
        text = folded_table(text, WORDS["rows"][page])
        text = folded_difference(text, WORDS["changes"][page])
    if page == "docs/explain":
        text = re.sub(ANOTHER_PAGE, "The field above does the same in your browser.", text)
    if page == "doctor/README" and repository:
        text = text.replace("git+ADDRESS#", f"git+{repository}#")
        text = re.sub(r"^`ADDRESS` stands for [^.]*\. ", "", text, flags=re.MULTILINE)
    if page.endswith(".zh"):
        text = text.replace(WORDS["not_marked"], WORDS["marked"])
    return text


def before_the_player(text: str, words: str) -> str:
    return re.sub(rf"{PARAGRAPH}(?=\n{PLAYER})", lambda _: f"{words}\n", text, count=1)


def after_the_player(text: str, words: str) -> str:
    found = re.search(rf"{PLAYER}[\s\S]*?</div>\n\n", text)
    if not found:
        return text
    rest = re.sub(rf"\A{PARAGRAPH}", lambda _: f"{words}\n", text[found.end() :])
    return text[: found.end()] + rest


def three_ways_first(text: str, ways: list[list[str]]) -> str:
    """The ways to begin, with the sentence that ends with a colon above them, follow the first
    paragraph. Each is short here: what GitHub's list says more is on the pages. The player comes
    next."""
    there = re.search(rf"(?<=[.。])\s?([^.。\n]+[:：])\n\n({WAYS})", text)
    first = re.search(rf"^# .+\n\n{PARAGRAPH}\n", text, re.MULTILINE)
    if not there or not first or there.start() < first.end():
        return text
    text = text[: there.start()] + "\n" + text[there.end() :]
    short = "\n".join(f"- **{title}**\n\n  {says}\n\n  {link}\n" for title, says, link in ways)
    boxes = f'{there[1]}\n\n<div class="ways">\n\n{short}\n</div>\n\n'
    start, rest = text[: first.end()], text[first.end() :]
    player = re.search(rf"{PARAGRAPH}\n{PLAYER}[\s\S]*?</div>\n\n", rest)
    if not player:
        return start + boxes + rest
    return start + boxes + player[0] + rest[: player.start()] + rest[player.end() :]


def how_to_get_it(text: str, words: list[str], repository: str) -> str:
    commands = ""
    if repository:
        folder = repository.rpartition("/")[2].removesuffix(".git")
        commands = f"git clone {repository}\ncd {folder}\n"
    sentence = words[0 if repository else 1]
    return text.replace("```sh\nmake demo\n", f"{sentence}\n\n```sh\n{commands}make demo\n", 1)


def folded_table(text: str, words: str) -> str:
    """The table of all changes is long. What it says is in the text around it."""

    def fold(found: re.Match) -> str:
        rows = found[2].count("\n") - 2
        summary = f"<summary>{words.replace('NUMBER', str(rows))}</summary>"
        return f"{found[1]}<details>{summary}\n\n{found[2]}\n</details>\n"

    return re.sub(r"(without\.py[^|]*\n\n)((?:\|.+\n)+)", fold, text, count=1)


FOLD = 'if (innerWidth < 577) document.querySelector(".folds-on-phone").open = false'


def folded_difference(text: str, words: str) -> str:
    """On a phone the difference is longer than two screens, so there it is folded (site.css has no
    summary for it elsewhere)."""
    end = f"</details>\n<script>{FOLD}</script>"
    start = f'<details class="folds-on-phone" open><summary>{words}</summary>'
    difference = r"(?:<!-- part .*-->\n)?```diff\n[\s\S]*?\n```\n"
    return re.sub(difference, lambda one: f"{start}\n\n{one[0]}\n{end}\n", text, count=1)

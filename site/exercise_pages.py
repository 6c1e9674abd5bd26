"""The pages of the exercises and of our answers to them: what stands above the listing.

An exercise has its title, its place among the others, and links to the page that explains it, to
our solution and to the next exercise. Only those who want a solution follow that link.
"""

import functools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).resolve().parent.parent
PAGE = re.compile(r"(exercises/(\d\d)_\w+)/(task|solution|other)")
TITLES = {
    "solution": "Solution of exercise {}",
    "other": "Other right answers to exercise {}",
}
ROW = re.compile(r"^\| \[(\d\d) `\w+`\]\((\w+)/task\.py\) \|.*\|.*\|.*\|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(\.\./([\w/]+)\.md(?:#([\w-]+))?\)")


@functools.cache
def exercises() -> dict[str, tuple[str, str]]:
    """{number: (folder, what the last column of the table in exercises/README.md says)}"""
    table = (ROOT / "exercises/README.md").read_text(encoding="utf-8")
    return {number: (f"exercises/{folder}", words) for number, folder, words in ROW.findall(table)}


def title_of(page: str) -> str | None:
    """The title of a page of an exercise, else nothing."""
    found = PAGE.fullmatch(page)
    if not found:
        return None
    folder, number, name = found.groups()
    if name in TITLES:
        return TITLES[name].format(number)
    text = (ROOT / folder / "task.py").read_text(encoding="utf-8")
    symptom = text.split("\n", 1)[0].strip('"')
    return f"Exercise {number}. {symptom}"


def above(page: str) -> list[nodes.paragraph]:
    """What stands above the listing."""
    folder, number, name = PAGE.fullmatch(page).groups()
    if name == "task":
        return above_task(page, folder, number)
    task = f"{folder}/task"
    words = ["The exercise is ", link(page, task, title_of(task)), ". "]
    if name == "solution":
        words += ["There are ", link(page, f"{folder}/other", "other right answers"), "."]
    else:
        words += ["Each answer stands below ", link(page, f"{folder}/solution", "our solution")]
        words += [" in one file, so it takes the place of what it defines again."]
    last = ["It is one of the ", link(page, "exercises/README", "exercises"), "."]
    return [paragraph(words), paragraph(last)]


def above_task(page: str, folder: str, number: str) -> list[nodes.paragraph]:
    first = [f"This is exercise {number} of {len(exercises())} in "]
    first += [link(page, "exercises/README", "Exercises"), ". Its file is "]
    first += [nodes.literal(text=f"{page}.py"), "."]
    for words, target, anchor in LINK.findall(exercises()[number][1])[:1]:
        first += [" It is explained in ", link(page, target, words, anchor), "."]
    second = ["There are ", link(page, f"{folder}/solution", "our solution"), " and "]
    second += [link(page, f"{folder}/other", "other right answers"), "."]
    after = neighbours_of(page)[1]
    if after:
        second += [" The next exercise is ", link(page, after, title_of(after)), "."]
    return [paragraph(first), paragraph(second)]


def neighbours_of(page: str) -> tuple[str | None, str | None]:
    """The same page of the exercise before this one and of the exercise after it."""
    _, number, name = PAGE.fullmatch(page).groups()
    folders = [folder for folder, _ in exercises().values()]
    at = list(exercises()).index(number)
    before = f"{folders[at - 1]}/{name}" if at > 0 else None
    after = f"{folders[at + 1]}/{name}" if at + 1 < len(folders) else None
    return before, after


def link(page: str, target: str, words: str, anchor: str = "") -> addnodes.pending_xref:
    values = {"refdomain": "doc", "reftype": "myst", "reftarget": target}
    values |= {"reftargetid": anchor or None, "refdoc": page, "refexplicit": True}
    inside = nodes.inline("", words, classes=["xref", "myst"])
    return addnodes.pending_xref("", inside, **values)


def paragraph(parts: list) -> nodes.paragraph:
    return nodes.paragraph(
        "", "", *[nodes.Text(one) if isinstance(one, str) else one for one in parts]
    )

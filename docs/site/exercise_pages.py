"""The pages of the exercises and of their solutions: what stands around the listing.

An exercise has its title, its place among the others, and links to the page that explains it, to
the solutions and to the next exercise. A solution is a difference without the lines that only a
program needs.
"""

import functools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).resolve().parent.parent.parent
EXERCISE = re.compile(r"exercises/(\d\d)_\w+/task")
SOLUTION = re.compile(r"exercises/solutions/(\d\d)_\w+?(\.other)?")
ROW = re.compile(r"^\| \[(\d\d) `\w+`\]\((\w+/task)\.py\) \|.*\|.*\|.*\|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(\.\./([\w/]+)\.md(?:#([\w-]+))?\)")


@functools.cache
def exercises() -> dict[str, tuple[str, str]]:
    """{number: (page, what the last column of the table in exercises/README.md says)}"""
    table = (ROOT / "exercises/README.md").read_text(encoding="utf-8")
    return {number: (f"exercises/{file}", words) for number, file, words in ROW.findall(table)}


def solutions(number: str) -> list[str]:
    name = Path(exercises()[number][0]).parent.name
    return [f"exercises/solutions/{name}", f"exercises/solutions/{name}.other"]


def symptom(number: str) -> str:
    """The first line of the exercise."""
    text = (ROOT / f"{exercises()[number][0]}.py").read_text(encoding="utf-8")
    return text.split("\n", 1)[0].strip('"')


def title_of(page: str) -> str | None:
    """The title of an exercise or of a solution, else nothing."""
    if found := EXERCISE.fullmatch(page):
        return f"Exercise {found[1]}. {symptom(found[1])}"
    if found := SOLUTION.fullmatch(page):
        return f"{'Second solution' if found[2] else 'Solution'} of exercise {found[1]}"
    return None


def around(page: str, text: str) -> tuple[list[nodes.paragraph], str]:
    """What stands above the listing of an exercise or of a solution, and the listing."""
    if found := EXERCISE.fullmatch(page):
        return above_exercise(page, found[1]), text
    number, other = SOLUTION.fullmatch(page).groups()
    return above_solution(page, number, bool(other), text), without_headers(text)


def above_exercise(page: str, number: str) -> list[nodes.paragraph]:
    ours, other = solutions(number)
    first = [f"This is exercise {number} of {len(exercises())} in "]
    first += [link(page, "exercises/README", "Exercises"), ". Its file is "]
    first += [nodes.literal(text=f"{page}.py"), "."]
    for words, target, anchor in LINK.findall(exercises()[number][1])[:1]:
        first += [" It is explained in ", link(page, target, words, anchor), "."]
    second = ["There are ", link(page, ours, "our solution"), " and "]
    second += [link(page, other, "a second one"), "."]
    after = neighbours_of(page)[1]
    if after:
        second += [" The next exercise is ", link(page, after, title_of(after)), "."]
    return [paragraph(first), paragraph(second)]


def above_solution(page: str, number: str, is_other: bool, text: str) -> list[nodes.paragraph]:
    exercise = exercises()[number][0]
    ours, second = solutions(number)
    first = ["The exercise is ", link(page, exercise, title_of(exercise)), ". "]
    if is_other:
        first += [f"In this solution, {text.split(chr(10), 1)[0]}. It is compared with "]
        first += [link(page, ours, "our solution"), "."]
    else:
        first += [
            "Lines with - are removed from the exercise, and lines with + are added. There is "
        ]
        first += [link(page, second, "a second solution"), "."]
    last = ["It is one of the ", link(page, "exercises/README", "exercises"), "."]
    return [paragraph(first), paragraph(last)]


def without_headers(difference: str) -> str:
    """The lines of a difference below "@@". Between two parts there is a line of dots."""
    _, *parts = re.split(r"^@@.*\n", difference, flags=re.MULTILINE)
    return " ...\n".join(parts)


def neighbours_of(page: str) -> tuple[str | None, str | None]:
    """The exercise, or the solution, before this one and after it."""
    found = EXERCISE.fullmatch(page) or SOLUTION.fullmatch(page)
    numbers = list(exercises())
    at = numbers.index(found[1])
    both = []
    for other in (at - 1, at + 1):
        number = numbers[other] if 0 <= other < len(numbers) else None
        if number and SOLUTION.fullmatch(page):
            both.append(solutions(number)[found[2] is not None])
        else:
            both.append(number and exercises()[number][0])
    return both[0], both[1]


def link(page: str, target: str, words: str, anchor: str = "") -> addnodes.pending_xref:
    values = {"refdomain": "doc", "reftype": "myst", "reftarget": target}
    values |= {"reftargetid": anchor or None, "refdoc": page, "refexplicit": True}
    inside = nodes.inline("", words, classes=["xref", "myst"])
    return addnodes.pending_xref("", inside, **values)


def paragraph(parts: list) -> nodes.paragraph:
    return nodes.paragraph(
        "", "", *[nodes.Text(one) if isinstance(one, str) else one for one in parts]
    )

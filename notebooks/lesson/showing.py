"""Show code, answers and tables as Markdown; where that is not rendered, as plain text."""

import ast
import textwrap

from IPython.display import display
from tabulate import tabulate

from .ranks import ROOT


def show_source(path: str, *names: str) -> None:
    """Show functions or classes of a script as they stand there now; "Class.method" works too."""
    show_code(source(path, *names), "python", caption=path)


def source(path: str, *names: str) -> str:
    """The text of functions and classes of a script, with their decorators; nothing is imported.

    path: from the repository's root. Raises LookupError for a name that is not there.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    parts = []
    for name in names:
        node = ast.parse(text)
        for inner in name.split("."):
            found = [child for child in node.body if getattr(child, "name", None) == inner]
            if not found:
                raise LookupError(f"{path} has no {name}")
            node = found[0]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        parts.append(textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])))
    return "\n\n\n".join(parts)


def show_code(text: str, language: str, caption: str = "") -> None:
    """Show text as code. language: "python", "diff" or "text"."""
    heading = f"`{caption}`\n\n" if caption else ""
    show(f"{heading}```{language}\n{text}\n```")


def table(titles: list[str], rows: list[list], align: str = "") -> None:
    """Show a table. align: a letter per column, l or r; the first is l and the rest r if not given.

    Numbers are shown as they are: format them first.
    """
    sides = {"l": "left", "r": "right"}
    columns = [sides[letter] for letter in align or "l" + "r" * (len(titles) - 1)]
    cells = [[str(cell) for cell in row] for row in rows]
    show(tabulate(cells, titles, tablefmt="pipe", colalign=columns, disable_numparse=True))


def show(markdown: str) -> None:
    display({"text/markdown": markdown, "text/plain": markdown}, raw=True)


def guessed(question: str, answer: float, unit: str = "") -> None:
    """Show a number that surprises, folded, so that a reader can guess it first.

    question: says in a few words which number is meant; unit: stands after the number. On the site,
    guess_number.js asks for the reader's number above the answer.
    """
    found = f"**{number(answer)}** {unit}".strip()
    show(f"<details><summary>Answer</summary>\n\n{question} {found}.\n\n</details>")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"

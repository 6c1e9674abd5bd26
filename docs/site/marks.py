"""Marks in the HTML of a page that its style and its scripts need, and that Sphinx does not write.

They are made when the site is built and not in the browser, because a page whose columns or letters
change their width after it was shown jumps under the eyes of its reader.
"""

import re

from bs4 import BeautifulSoup, Tag

LONG_CELL = 40  # letters; a column with a longer cell is one of text
LONG_LINE = 100  # letters; output with a longer line is set smaller on a laptop
WIDE_PICTURE = 500  # pixels; on a phone a wider picture keeps its size and scrolls
PROGRAMS = r"torchrun|python|pip|srun|sbatch|make|git|uv|ddp-doctor|accelerate"
ASSIGNMENTS = r"(?:[A-Z][A-Z0-9_]+=\S* )*"
STARTS = rf"(?:export |{ASSIGNMENTS}(?:\S*/)?(?:{PROGRAMS}) )\S"
ONE_VARIABLE = r"[A-Z][A-Z0-9_]{3,}=\S+$"
COMMAND = re.compile(f"{STARTS}|{ONE_VARIABLE}")


def marked(html: str) -> str:
    """The same HTML with classes for tables, long lines and wide pictures."""
    if not any(part in html for part in ("<table", "<pre", "<img")):
        return html
    page = BeautifulSoup(html, "html.parser")
    for table in page.find_all("table"):
        if "highlighttable" not in table.get("class", []):
            mark_table(table)
    for code in page.select("td code"):
        if COMMAND.match(code.get_text()):
            add_class(code, "command")
            add_button(page, code)
    for pre in page.select(".highlight pre"):
        longest = max((len(line) for line in pre.get_text().splitlines()), default=0)
        if longest > LONG_LINE:
            add_class(pre, "wide")
    for picture in page.find_all("img"):
        if int(picture.get("width", 0)) > WIDE_PICTURE:
            box = page.new_tag("span", attrs={"class": "picture-box", "tabindex": "0"})
            picture.wrap(box)
        elif picture.find_parent(class_="player"):
            picture.wrap(page.new_tag("noscript"))  # where the player comes, nobody sees it
        elif "width" not in picture.attrs:
            picture["loading"] = "lazy"  # fetched when it comes near the screen
    return str(page)


def add_button(page: BeautifulSoup, code: Tag) -> None:
    """Keep a place free for the button that copies a command. copy_commands.js makes it work, and
    without JavaScript it is not seen."""
    button = page.new_tag("button", attrs={"type": "button", "class": "copy-command"})
    button["title"] = f"Copy {code.get_text()}"
    code.insert_after(button)


def mark_table(table: Tag) -> None:
    """Columns of text get a least width. On a phone, a table with such a column stacks its cells,
    each below the name of its column, and leaves out the empty ones (site.css)."""
    names = [cell.get_text().strip() for cell in table.select("thead th")]
    rows = [row.find_all(["td", "th"], recursive=False) for row in table.select("tbody tr")]
    text_columns = set()
    for row in rows:
        for column, cell in enumerate(row):
            if column < len(names) and len(cell.get_text().strip()) > LONG_CELL:
                text_columns.add(column)
    if len(names) > 1 and text_columns:
        add_class(table, "stacks")
    for row in rows:
        for column, cell in enumerate(row):
            if column in text_columns:
                add_class(cell, "text")
            if not cell.get_text().strip() and not cell.find("img"):
                add_class(cell, "empty")
            if column < len(names):
                cell["data-name"] = names[column]


def add_class(element: Tag, name: str) -> None:
    element["class"] = [*element.get("class", []), name]

"""Marks in the HTML of a page that its style and its scripts need, and that Sphinx does not write.

They are made when the site is built and not in the browser, because a page whose columns or letters
change their width after it was shown jumps under the eyes of its reader.
"""

import re

from bs4 import BeautifulSoup, Tag

LONG_CELL = 40  # letters; a column with a longer cell is one of text
LONG_LINE = 100  # letters; output with a longer line is set closer on a laptop
LONGEST_LINE = 105  # and from here on still closer
PHONE_LINE = 36  # letters; on a phone a longer line would reach below the copy button
DIFF_INDENT = re.compile(r"((?:<[^>]*>)*)(.? *)(.*)")  # tags, the sign and the blanks, the code
CODE_INDENT = re.compile(r"((?:<[^>]*>)*)( *)(.*)")
# A line that is only a comment: its indentation, the colour. A numbered one begins a paragraph.
COMMENT = re.compile(r"(?:<[^>]*>)*([-+ ]? *)((?:<[^>]*>)*)# (?!\d+[a-z]?\.|[-*] )")
COMMENT_START = re.compile(r"(?:<[^>]*>)*([-+ ]? *)(?:<[^>]*>)*# ")
BREAKS = re.compile(r"(?<=[.(\[=_/,])(?=[\w\"'])")  # of code in a table
WIDE_PICTURE = 500  # pixels; a phone makes a wider picture small, so it leads to itself
RULER = re.compile(r"-{3,}(?:  +-{3,}){2,}")  # below the names of the columns of a printed table
TERMS = ("term", "术语")  # the first column of a glossary
# How much a word counts for the search: 1 in a paragraph, 7 in the title of a page (Pagefind).
WEIGHT_OF_TERM = "7"
WEIGHT_OF_MESSAGE = "5"
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
        allow_breaks(page, code)
        if COMMAND.match(code.get_text()):
            add_class(code, "command")
            add_button(page, code)
    for pre in page.select(".highlight pre"):
        lengths = [len(line) for line in pre.get_text().splitlines()] or [0]
        if max(lengths[:2]) > PHONE_LINE:
            add_class(pre, "long-start")
        if max(lengths) > LONG_LINE:
            add_class(pre, "widest" if max(lengths) > LONGEST_LINE else "wide")
    for pre in page.select(".highlight-diff pre"):
        mark_lines(pre, DIFF_INDENT)
    for pre in page.select(".cell_input .highlight pre"):
        mark_lines(pre, CODE_INDENT)
    for pre in page.select(".highlight-none pre"):
        keep_names(page, pre)
    for message in page.select(".highlight-output"):
        message["data-pagefind-weight"] = WEIGHT_OF_MESSAGE
    for picture in page.find_all("img"):
        if "width" not in picture.attrs:
            picture["loading"] = "lazy"  # fetched when it comes near the screen
        if int(picture.get("width", WIDE_PICTURE + 1)) > WIDE_PICTURE:
            link_to_itself(page, picture)
    return str(page)


def for_the_search(html: str) -> str:
    """The same HTML with what Pagefind needs: it reads the element with data-pagefind-body, leaves
    out pages that have none, and leads to headings that have an id. Sphinx gives it to sections."""
    page = BeautifulSoup(html, "html.parser")
    page.section["data-pagefind-body"] = ""
    for section in page.select("section[id]"):
        heading = section.find(re.compile("h[1-6]"), recursive=False)
        if heading:
            heading["id"] = section["id"]
            del section["id"]
    for link in page.select("a.headerlink"):
        link["data-pagefind-ignore"] = ""
    return str(page)


def keep_names(page: BeautifulSoup, pre: Tag) -> None:
    """The first column of a printed table is an element in each line: on a phone it stays where it
    is while the other columns scroll."""
    lines = pre.get_text().split("\n")
    widths = {}  # number of a line: letters of its first column
    for number, line in enumerate(lines):
        if RULER.fullmatch(line):
            rows = range(number - 1, number + [*lines[number:], ""].index(""))
            widths |= dict.fromkeys(rows, line.index(" "))
    if not widths:
        return
    add_class(pre, "printed-table")
    pre.clear()
    for number, line in enumerate(lines):
        width = widths.get(number, 0)
        if line[width : width + 2].strip():
            width = 0  # a note
        if width:
            name = page.new_tag("span", attrs={"class": "row-name"})
            name.string = line[:width]
            pre.append(name)
        pre.append(line[width:] + "\n" * (number < len(lines) - 1))


def link_to_itself(page: BeautifulSoup, picture: Tag) -> None:
    """A link around a picture, unless it has one. site.js opens it larger where it stands."""
    if picture.parent.name == "a":
        add_class(picture.parent, "picture-box")
    else:
        box = page.new_tag("a", attrs={"class": "picture-box", "href": picture["src"]})
        picture.wrap(box)


def allow_breaks(page: BeautifulSoup, code: Tag) -> None:
    """Code in a table may break behind a point or a bracket: then it does not break in a name."""
    for word in code.select(".pre"):
        if word.get_text().startswith("-"):
            add_class(word, "flag")
    for text in list(code.find_all(string=True)):
        first, *others = BREAKS.split(text)
        for other in reversed(others):
            text.insert_after(page.new_tag("wbr"), other)
        if others:
            text.replace_with(first)


def add_button(page: BeautifulSoup, code: Tag) -> None:
    """Keep a place free for the button that copies a command. copy_commands.js makes it work, and
    without JavaScript it is not seen."""
    button = page.new_tag("button", attrs={"type": "button", "class": "copy-command"})
    button["title"] = f"Copy {code.get_text()}"
    code.insert_after(button)


def mark_table(table: Tag) -> None:
    """Columns of text get a least width. On a phone, a table with such a column stacks its cells,
    each behind the name of its column, and leaves out the empty ones (site.css)."""
    names = [cell.get_text().strip() for cell in table.select("thead th")]
    rows = [row.find_all(["td", "th"], recursive=False) for row in table.select("tbody tr")]
    text_columns = set()
    for row in rows:
        for column, cell in enumerate(row):
            if column < len(names) and len(cell.get_text().strip()) > LONG_CELL:
                text_columns.add(column)
    if len(names) > 1 and text_columns:
        add_class(table, "stacks")
        if len(names) == 2:
            add_class(table, "pairs")
    if names and names[0] in TERMS:
        for row in rows:
            add_address(row[0])
        if names[0] == TERMS[0]:
            rows += add_long_entries(table)
            add_letters(table)
    for row in rows:
        for column, cell in enumerate(row):
            if column in text_columns:
                add_class(cell, "text")
            if not cell.get_text().strip() and not cell.find("img"):
                add_class(cell, "empty")
            if column < len(names) and names[column]:
                cell["data-name"] = names[column]
            if cell.get_text().strip().isdigit():
                add_class(cell, "number")


def mark_lines(pre: Tag, indented: re.Pattern) -> None:
    """Each line of code is an element that knows its indentation: a phone breaks long lines, and
    what is below must stay to the right of where the line began (site.css). Lines of one comment
    are one element, which a phone fills as a paragraph."""
    html = ""
    before = None
    for line in pre.decode_contents().removesuffix("\n").split("\n"):
        line = line.replace('<span class="w"> </span>', " ", 1)
        tags, indent, code = indented.fullmatch(line).groups()
        comment = COMMENT.match(line)
        goes_on = comment and comment[1] == before
        if goes_on:
            colour = comment[2]
            hidden = f"\n{tags}{indent}{colour}# {closing(colour)}{closing(tags)}"
            html = html.removesuffix("\n</span>") + f'<span class="join">{hidden}</span>{tags}'
            html += code.replace("# ", "", 1)
        else:
            html += f'<span class="line" style="--indent: {len(indent)}ch">'
            html += f'{tags}<span class="indent">{indent}</span>{code}'
        html += "\n</span>"
        first = COMMENT_START.match(line)
        before = first[1] if first else None
    lines = BeautifulSoup(f"<pre>{html}</pre>", "html.parser").pre  # keeps the blanks
    pre.clear()
    pre.extend(list(lines.children))


def closing(tags: str) -> str:
    """The end of what these tags begin."""
    names = re.findall(r"<(\w+)", tags.replace("</", "<!"))
    open_ = names[: len(names) - tags.count("</")]
    return "".join(f"</{name}>" for name in reversed(open_))


def add_address(term: Tag) -> None:
    """An anchor for a row of the glossary, and a link to it as headings have."""
    address = address_of(term.get_text())
    term["data-pagefind-weight"] = WEIGHT_OF_TERM
    term.parent["id"] = address
    html = f'<a class="headerlink" href="#{address}" title="Link to this term">#</a>'
    (term.find("p") or term).append(BeautifulSoup(html, "html.parser"))


def address_of(term: str) -> str:
    words = re.sub(r"\W+", "-", term.strip().lower()).strip("-")
    return f"term-{words}"


def add_long_entries(table: Tag) -> list[list[Tag]]:
    """A row in the glossary's table for each entry below it, so that one list has all terms."""
    added = []
    for heading in table.find_all_next("h2"):
        words = heading.get_text().removesuffix("#").strip()
        address = heading.parent["id"]
        cells = f"<td><p>{words}</p></td><td><p><a href='#{address}'>Below the table</a></p></td>"
        row = BeautifulSoup(f"<tr>{cells}</tr>", "html.parser").tr
        after = [one for one in table.select("tbody tr") if name_of(one) > words.lower()]
        (after[0].insert_before if after else table.tbody.append)(row)
        added.append(row.find_all("td"))
    return added


def add_letters(table: Tag) -> None:
    """Links to the first term of each letter, above the table."""
    rows = {}
    for row in table.select("tbody tr"):
        letter = name_of(row)[0].upper()
        row["id"] = row.get("id", f"letter-{letter}")
        rows.setdefault(letter, row["id"])
    links = " ".join(f'<a href="#{address}">{letter}</a>' for letter, address in rows.items())
    letters = BeautifulSoup(f'<p class="letters">{links}</p>', "html.parser")
    (table.find_parent(class_="pst-scrollable-table-container") or table).insert_before(letters)


def name_of(row: Tag) -> str:
    return row.td.get_text().removesuffix("#").strip().lower()


def add_class(element: Tag, name: str) -> None:
    element["class"] = [*element.get("class", []), name]

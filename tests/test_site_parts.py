"""The parts of the site's build that need no build: who follows whom, marks in HTML, colours."""

import re

import pytest

pytest.importorskip("sphinx", reason="requirements/site.txt has it")
import yaml  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402
from cells import CellLexer  # noqa: E402
from conftest import ROOT  # noqa: E402
from exercise_pages import above, exercises, neighbours_of, title_of  # noqa: E402
from marks import for_the_search, marked  # noqa: E402
from reading_path import neighbours  # noqa: E402

ORDER = ["README", "one", "one/notebook", "one/train", "two", "AGENTS", "README.zh", "one.zh"]
SCRIPTS = {"one/train"}


def relations():
    """As Sphinx has them: [page above, page before, page after]"""
    before = [None, *ORDER]
    after = [*ORDER[1:], None]
    return {page: ["README", *both] for page, *both in zip(ORDER, before, after)}


@pytest.mark.parametrize(
    "page, wanted",
    [
        ("README", (None, "one")),
        ("one/notebook", ("one", "two")),  # past the script
        ("two", ("one/notebook", None)),  # no page for assistants, and no Chinese one
        ("one/train", (None, None)),  # a listing leads to its page
        ("README.zh", (None, "one.zh")),
        ("not in navigation.yml", (None, None)),
    ],
)
def test_previous_and_next_are_on_the_path_of_a_reader(page, wanted):
    assert neighbours(page, relations(), SCRIPTS) == wanted


LONG = "a cell that is longer than forty letters, for sure"
TABLE = f"""<table><thead><tr><th>name</th><th>what</th><th>more</th></tr></thead>
<tbody><tr><td>a</td><td>{LONG}</td><td></td></tr></tbody></table>"""


def test_a_table_of_text_knows_its_columns_and_its_empty_cells():
    html = marked(TABLE)
    assert '<table class="stacks">' in html
    assert '<td data-name="name">a</td>' in html
    assert f'<td class="text" data-name="what">{LONG}</td>' in html
    assert '<td class="empty" data-name="more"></td>' in html
    assert 'class="stacks"' not in marked(TABLE.replace(LONG, "short"))


def test_a_term_has_an_address():
    html = marked(
        TABLE.replace("<th>name</th>", "<th>term</th>").replace("<td>a</td>", "<td>A b</td>")
    )
    assert 'id="term-a-b"' in html and 'href="#term-a-b"' in html


@pytest.mark.parametrize(
    "code, is_command",
    [
        ("torchrun --standalone SCRIPT", True),
        ("CUDA_VISIBLE_DEVICES= python train.py", True),
        (".venv/bin/python compare.py", True),
        ("export MNIST_ROOT=data/drawn", True),
        ("NCCL_DEBUG=INFO", True),
        ("python", False),
        ("--nnodes 2", False),
        ("make_model", False),
        ("RANK", False),
    ],
)
def test_which_code_of_a_table_is_a_command(code, is_command):
    html = marked(f"<table><tbody><tr><td><code>{code}</code></td></tr></tbody></table>")
    assert ('class="command"' in html) == is_command


def test_long_lines_and_wide_pictures_are_marked():
    block = '<div class="highlight"><pre>{}</pre></div>'
    assert ' widest"' in marked(block.format("x" * 118))
    assert ' wide"' in marked(block.format("x" * 103))
    assert "wide" not in marked(block.format("x\n" * 118))
    assert 'class="picture-box"' in marked('<img alt="" src="a.png" width="720"/>')
    assert 'class="picture-box"' in marked('<img alt="" src="a.png"/>')
    assert 'class="picture-box"' not in marked('<img alt="" src="a.png" width="120"/>')
    linked = marked('<a class="image" href="a.png"><img alt="" src="a.png" width="720"/></a>')
    assert linked.count("<a ") == 1, "a link in a link"


def test_a_phone_keeps_the_indentation_of_a_difference():
    """Each line is an element that knows where it began, and the text stays what it was."""
    lines = ["-for a in b:", "+    c()  # why", "     d()", "+", " ..."]
    block = '<div class="highlight-diff"><div class="highlight"><pre><span></span>{}\n</pre></div>'
    spans = {"-": '<span class="gd">{}</span>', "+": '<span class="gi">{}</span>', " ": "{}"}
    coloured = [spans[line[0]].format(line) for line in lines]
    html = marked(block.format("\n".join(coloured)))
    page = BeautifulSoup(html, "html.parser")
    assert page.pre.get_text() == "\n".join(lines) + "\n"
    assert [line["style"] for line in page.select(".line")] == [
        f"--indent: {indent}ch" for indent in (1, 5, 5, 1, 1)
    ]
    assert [line.get_text() for line in page.select(".indent")] == ["-", "+    ", "     ", "+", " "]


@pytest.mark.parametrize("folder", ["highlight-diff", "cell_input"])
def test_lines_of_one_comment_are_one_element(folder):
    """And the text stays what it was. A numbered comment begins another one."""
    signs = ["+", "+", "+", "+", " "] if folder == "highlight-diff" else [""] * 5
    words = ["    # one", "    # two", "    # 2. three", "    call()", "    # four"]
    lines = [sign + word for sign, word in zip(signs, words)]
    coloured = [re.sub("(# .*)", r'<span class="c1">\1</span>', line) for line in lines]
    block = '<div class="{}"><div class="highlight"><pre>{}\n</pre></div></div>'
    page = BeautifulSoup(marked(block.format(folder, "\n".join(coloured))), "html.parser")
    assert page.pre.get_text() == "\n".join(lines) + "\n"
    assert [len(line.select(".join")) for line in page.select(".line")] == [1, 0, 0, 0]


def test_a_printed_table_is_marked():
    block = '<div class="highlight-none"><div class="highlight"><pre>{}\n</pre></div></div>'
    text = "above\n\na    b    c\n---  ---  ---\n1    2    3\n(1) a note\n"
    page = BeautifulSoup(marked(block.format(text)), "html.parser")
    assert page.select_one("pre.printed-table").get_text() == f"{text}\n"
    assert [name.get_text() for name in page.select(".row-name")] == ["a  ", "---", "1  "]
    assert "printed-table" not in marked(block.format("a\n---\n1"))


def test_code_in_a_table_breaks_between_names():
    html = marked("<table><tbody><tr><td><code>int(a.b_c['D'])</code></td></tr></tbody></table>")
    assert "int(<wbr/>a.<wbr/>b_<wbr/>c[<wbr/>'D'])" in html


def test_the_glossary_lists_its_long_entries_and_its_letters():
    table = TABLE.replace("<th>name</th>", "<th>term</th>").replace("<td>a</td>", "<td>A b</td>")
    page = BeautifulSoup(marked(f'{table}<section id="c"><h2>C</h2></section>'), "html.parser")
    assert [link["href"] for link in page.select(".letters a")][-1] == "#letter-C"
    assert page.select_one("#letter-C a")["href"] == "#c"


def test_a_heading_has_the_anchor_of_its_section():
    """Pagefind leads to headings, and reads what is below one element."""
    html = '<p>a</p><section id="b"><h1>B</h1><section id="c"><h2>C</h2></section></section>'
    page = BeautifulSoup(for_the_search(html), "html.parser")
    assert page.h1["id"] == "b" and page.h2["id"] == "c" and "id" not in page.section.attrs
    assert page.select_one("[data-pagefind-body]").get_text() == "BC"


def test_a_line_below_the_copy_button_is_marked():
    block = '<div class="highlight"><pre>{}</pre></div>'
    assert 'class="long-start"' in marked(block.format("short\n" + "x" * 40))
    assert 'class="long-start"' not in marked(block.format("short\nshort\n" + "x" * 40))


def test_a_cell_below_a_magic_has_colours():
    lexer = CellLexer()
    tokens = list(lexer.get_tokens("%%torchrun 2\nimport torch\nassert 1 == 1\n"))
    kinds = {str(kind): text for kind, text in tokens}
    assert kinds["Token.Comment.Preproc"] == "%%torchrun"
    assert kinds["Token.Keyword.Namespace"] == "import" and kinds["Token.Keyword"] == "assert"
    assert "Token.Error" not in kinds


def test_answers_lead_back_to_their_exercise():
    for name in ("solution", "other"):
        page = f"exercises/24_overlap/{name}"
        assert "exercise 24" in title_of(page)
        assert "Exercise 24. Overlap communication" in above(page)[0].astext()


def test_each_exercise_leads_to_its_page_and_to_the_next_one():
    for number, (folder, _) in exercises().items():
        text = "\n".join(one.astext() for one in above(f"{folder}/task"))
        assert f"exercise {number} of 26" in text and "It is explained in" in text
        assert ("The next exercise is" in text) == (number != "26")
    assert neighbours_of("exercises/21_sharded_too_late/task") == (
        *("exercises/20_stream_of_workers/task", "exercises/22_averaging_hook/task"),
    )


def test_the_pages_that_searches_should_find_are_there():
    """So that a page that moves does not count as one that the search has missed."""
    searches = yaml.safe_load((ROOT / "tests/searches.yml").read_text(encoding="utf-8"))
    for kind in searches.values():
        for page in " ".join(kind.values()).split():
            assert [ending for ending in (".md", ".ipynb") if (ROOT / f"{page}{ending}").exists()]

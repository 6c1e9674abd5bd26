"""The parts of the site's build that need no build: who follows whom, marks in HTML, colours."""

import pytest

pytest.importorskip("sphinx", reason="requirements/site.txt has it")
from cells import CellLexer  # noqa: E402
from marks import marked  # noqa: E402
from reading_path import names_of, neighbours  # noqa: E402

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


def test_the_short_name_of_a_page():
    assert names_of({"README": {"Start": {"Cheat sheet": "docs/cheatsheet"}}}) == {
        "docs/cheatsheet": "Cheat sheet"
    }


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
    assert 'class="wide"' in marked(block.format("x" * 118))
    assert 'class="wide"' not in marked(block.format("x\n" * 118))
    assert 'class="picture-box"' in marked('<img alt="" src="a.png" width="720"/>')
    assert 'class="picture-box"' not in marked('<img alt="" src="a.png"/>')
    still = '<div class="player"><img alt="" src="a.png"/></div>'
    assert "<noscript><img" in marked(still), "the player replaces it, so it is not fetched"


def test_a_cell_below_a_magic_has_colours():
    lexer = CellLexer()
    tokens = list(lexer.get_tokens("%%torchrun 2\nimport torch\nassert 1 == 1\n"))
    kinds = {str(kind): text for kind, text in tokens}
    assert kinds["Token.Comment.Preproc"] == "%%torchrun"
    assert kinds["Token.Keyword.Namespace"] == "import" and kinds["Token.Keyword"] == "assert"
    assert "Token.Error" not in kinds

"""Cells of a notebook: colours below a magic such as %%torchrun, and folded code around a guess."""

import json

from docutils import nodes
from pygments.lexer import bygroups, inherit
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Text
from sphinx.application import Sphinx


class CellLexer(PythonLexer):
    """Python below a line like "%%torchrun 2". Pygments' own lexer for IPython knows a few magics,
    and shows the whole cell without colours below any other one."""

    name = "cell"
    aliases = ("cell",)
    tokens = {"root": [(r"\A(%%\w+)(.*\n)", bygroups(Comment.Preproc, Text)), inherit]}


def colour_magic_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Choose this lexer for the cells that need it."""
    for block in doctree.findall(nodes.literal_block):
        if block.astext().startswith("%%"):
            block["language"] = CellLexer.name


def fold_guesses(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fold the code of a cell that shows an answer, and of the one behind it. Both stand next to
    the field for the reader's own number, which static/guess_number.js adds."""
    if app.env.doc2path(docname).suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    folds = False
    for cell in notebook["cells"]:
        is_code = cell["cell_type"] == "code"
        guesses = is_code and "lesson.guessed(" in "".join(cell["source"])
        if guesses or (folds and is_code):
            cell["metadata"].setdefault("tags", []).append("hide-input")
        folds = guesses
    source[0] = json.dumps(notebook)

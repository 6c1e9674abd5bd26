"""Colours for the cells of a notebook that begin with a magic such as %%torchrun."""

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

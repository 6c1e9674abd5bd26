"""Build notebooks/*.ipynb from notebooks/source/*.md, and check that they agree.

    python tools/build_notebooks.py          # run all, write them with their outputs
    python tools/build_notebooks.py 01 03    # these two
    python tools/build_notebooks.py --check  # run all from fresh kernels, compare, write nothing

People write and review the Markdown (MyST: only a {code-cell} is code). A cell tagged `quote` shows
what stands in a script or a record, and --check compares what it shows now with what the notebook
shows. A cell tagged `check` has the assertions that hold the text to what the cells above it have
computed. It is run here, and no reader sees it, because the notebook does not contain it. A cell
tagged `hide-input` is folded, but not on GitHub. A solution is folded there as well: it is Python
in a <details> of the text, which is run and leaves no output.

source/NAME.zh.md has the Chinese texts of a notebook, and +++ in place of the code cells between
two texts. Code and outputs of NAME.zh.ipynb are those of NAME.ipynb, and nothing is run for it.
Exit code 1 and a line on stderr for each thing that is wrong, 2 for a notebook that does not exist.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # This file is started as a script.
moving = import_module("notebooks.pictures.moving")
svg = import_module("notebooks.pictures.svg")
FOLDER = ROOT / "notebooks"
MOST_BYTES = 400_000
CELL_SECONDS = 600  # that one cell may take; none is written to take more than 60
CODE_CELL = r"^```\{code-cell\}$.*?^```$"
CODE_CELLS = re.compile(rf"{CODE_CELL}(?:\n\n{CODE_CELL})*", re.DOTALL | re.MULTILINE)
SOLUTION = re.compile(
    r"^<details>(?:(?!</details>).)*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", help="such as 01 or 03_ddp_spawn; all if none is given")
    add("--check", action="store_true", help="run all from fresh kernels, compare, write nothing")
    args = parser.parse_args()
    there = sorted(path.stem for path in FOLDER.glob("source/*.md"))
    for name in args.names:
        if not any(known.startswith(name) for known in there):
            parser.error(f"no notebook {name}; there are {', '.join(there)}")
    wrong = []
    for name in there:
        if name.startswith(tuple(args.names or [""])):
            started = time.monotonic()
            found = compare(name) if args.check else build(name)
            wrong += [f"{name}: {line}" for line in found]
            print(f"notebooks/{name}.ipynb  {time.monotonic() - started:6.1f} s", flush=True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def build(name: str) -> list[str]:
    """Run a source and write it with its outputs -> what is wrong; then nothing is written."""
    book = read_source(name)
    wrong = take_outputs(book, name) if is_chinese(name) else run(book)
    wrong = wrong or unfit(book)
    if not wrong:
        nbformat.write(book, FOLDER / f"{name}.ipynb", version=4)
        moving.draw_again(FOLDER / f"{name}.ipynb")
    return wrong


def is_chinese(name: str) -> bool:
    return name.endswith(".zh")


def english_of(name: str) -> str:
    return name.removesuffix(".zh")


def take_outputs(book: nbformat.NotebookNode, name: str) -> list[str]:
    """Give a Chinese notebook the outputs of the English one -> what is wrong"""
    book.cells = without_checks(book.cells)
    english = nbformat.read(FOLDER / f"{english_of(name)}.ipynb", as_version=4)
    if len(book.cells) != len(english.cells):
        return [f"it has {len(book.cells)} cells, and the English notebook {len(english.cells)}"]
    for cell, same in zip(book.cells, english.cells):
        if cell.cell_type == "code":
            cell.outputs = same.outputs
            cell.execution_count = same.execution_count
    return []


def compare(name: str) -> list[str]:
    """Compare source and notebook, and run all cells again -> what is wrong"""
    fresh = read_source(name)
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    wrong = unfit(stored)
    if cells_of(stored) != cells_of(fresh):
        return [*wrong, "source and notebook differ: make notebooks"]
    if is_chinese(name):
        return wrong
    shown = {cell.id: texts(cell) for cell in stored.cells if "quote" in tags(cell)}
    wrong += run(fresh) or unfit(fresh)
    for then, now in zip(moving.moving_pictures(stored), moving.moving_pictures(fresh)):
        picture, data = svg.data_of(now.data["image/svg+xml"])
        if not svg.same_data(data, svg.data_of(then.data["image/svg+xml"])[1]):
            wrong.append(f"the data of the picture {picture} have changed: make notebooks")
    for cell in fresh.cells:
        if cell.id in shown and cell.outputs and texts(cell) != shown[cell.id]:
            wrong.append(f"{cell.id}: what it quotes has changed: make notebooks")
    return wrong


def cells_of(book: nbformat.NotebookNode) -> list[tuple]:
    """What a source determines of each cell that is shown; everything else is output."""
    return [(cell.cell_type, cell.source, tags(cell)) for cell in without_checks(book.cells)]


def read_source(name: str) -> nbformat.NotebookNode:
    """The notebook that a source describes, without outputs and still with its checks.

    The cells that are shown are numbered from cell-00.
    """
    text = (FOLDER / f"source/{name}.md").read_text(encoding="utf-8")
    if is_chinese(name):
        english = FOLDER / f"source/{english_of(name)}.md"
        text = with_code(text, english.read_text(encoding="utf-8"))
    book = jupytext.reads(text, fmt="md:myst")
    book.metadata = nbformat.from_dict(METADATA)
    book.nbformat = 4
    book.nbformat_minor = 5
    for number, cell in enumerate(without_checks(book.cells)):
        cell.id = f"cell-{number:02}"
        if cell.cell_type == "markdown":  # the notebook lies a folder higher than its source
            cell.source = cell.source.replace("](../", "](")
        if "hide-input" in tags(cell):  # folded in JupyterLab, too
            cell.metadata["jupyter"] = {"source_hidden": True}
    return book


def with_code(chinese: str, english: str) -> str:
    """A Chinese source without its stamp, and with the code of the English one for each +++"""
    _, _, text = chinese.partition("\n")
    for cells in CODE_CELLS.findall(english):
        text = text.replace("\n+++\n", f"\n{cells}\n", 1)
    return text


def run(book: nbformat.NotebookNode) -> list[str]:
    """Run all cells in a fresh kernel that starts in notebooks/ -> what is wrong

    Afterwards the book has only the cells that are shown.
    """
    shown = without_checks(book.cells)
    to_run = []
    for cell in book.cells:
        to_run += [cell, *solutions(cell)]
    book.cells = to_run
    client = NotebookClient(
        book,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,  # or every cell gets four timestamps
        coalesce_streams=True,
    )
    try:
        # A cell that starts torchrun must find the one of this environment.
        folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        client.execute(env=os.environ | {"PYTHONHASHSEED": "0", "PATH": folders})
    except CellExecutionError as error:
        return [f"it ended in {error.ename}: {error.evalue}\n{error}"]
    except (CellControlSignal, DeadKernelError) as error:
        return [str(error)]
    finally:
        book.cells = shown
    number_runs(shown)
    return []


def number_runs(cells: list[nbformat.NotebookNode]) -> None:
    """Number the code cells as if nothing else had been run."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number


def without_checks(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    return [cell for cell in cells if "check" not in tags(cell)]


def solutions(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code in the folds of a text, as cells to run"""
    found = SOLUTION.findall(cell.source) if cell.cell_type == "markdown" else []
    return [nbformat.v4.new_code_cell(code) for code in found]


def unfit(book: nbformat.NotebookNode) -> list[str]:
    """What no notebook may have: too many bytes, stderr, errors, places on a disk."""
    wrong = []
    size = len(nbformat.writes(book, version=4))
    if size > MOST_BYTES:
        wrong.append(f"{size / 1000:.0f} KB, more than {MOST_BYTES / 1000:.0f}")
    places = {str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir() + "/"} - {"/"}
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" or output.get("name") == "stderr":
                wrong.append(f"{cell.id}: has an error or writes to stderr: {str(output)[:200]}")
        shown = "\n".join(texts(cell))
        for place in places:
            if place in shown:
                wrong.append(f"{cell.id}: shows where things lie on this disk: {place}")
    return wrong


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell has printed and shown; of a picture, the words in it."""
    found = []
    for output in cell.get("outputs", []):
        found.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return found


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


if __name__ == "__main__":
    sys.exit(main())

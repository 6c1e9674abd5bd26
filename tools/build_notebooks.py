"""Make notebooks/*.ipynb from notebooks/source/*.md, and see to it that they stay true.

    python tools/build_notebooks.py          # run them all, write them with their outputs
    python tools/build_notebooks.py 01 03    # these two
    python tools/build_notebooks.py --check  # seconds: do source, notebook and quotes agree?
    python tools/build_notebooks.py --run    # minutes: run all from fresh kernels, write nothing

People write and review the Markdown (MyST: only a {code-cell} is code). A cell tagged `quote` shows
what stands in a script or a record. --check computes it anew, without a kernel, from the cells
tagged `setup` and `quote` alone; --run compares it too. Exit code 1 and a line for each thing that
is wrong, 2 if it was asked for something that is not there.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

try:
    import jupytext
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
except ImportError as error:
    print(f"{error}: pip install -r requirements-dev.txt", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
MOST_BYTES = 400_000
MOST_SECONDS = 900  # for one notebook; they are written to take less than 90
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main() -> int:
    args = parse()
    wrong = []
    for name in args.names:
        if args.check:
            wrong += check(name)
        else:
            wrong += run(name, args.folder) if args.run else build(name)
    for line in wrong:
        print(line, file=sys.stderr)
    if args.check:
        print(f"{len(args.names)} notebooks looked at, {len(wrong)} things wrong")
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", help="such as 01 or 03_ddp_spawn; all if none is given")
    add("--check", action="store_true", help="execute nothing but quotes, compare, write nothing")
    add("--run", action="store_true", help="execute from a fresh kernel, write nothing")
    add("--folder", default="notebooks", choices=("notebooks", "."), help="--run: start here")
    args = parser.parse_args()
    there = {path.stem for path in [*FOLDER.glob("source/*.md"), *FOLDER.glob("*.ipynb")]}
    for name in args.names:
        if not any(known.startswith(name) for known in there):
            parser.error(f"no notebook {name}; there are {', '.join(sorted(there))}")
    chosen = [name for name in there if name.startswith(tuple(args.names or [""]))]
    args.names = sorted(chosen)
    return args


# ---------------------------------------------------------------- building


def build(name: str) -> list[str]:
    """Execute a source and write it with its outputs, unless that shows what is wrong."""
    if not source_path(name).exists():
        return [f"{name}: there is no notebooks/source/{name}.md"]
    book = read_source(name)
    began = time.monotonic()
    if failed := execute(book, FOLDER):
        return [f"{name}: {failed}"]
    seconds = time.monotonic() - began
    text = nbformat.writes(book, version=4, indent=1) + "\n"
    if wrong := unfit(book, len(text.encode())):
        largest = max(book.cells, key=lambda cell: len(json.dumps(cell)))
        wrong.append(
            f"(the largest cell is {largest.id}: {len(json.dumps(largest)) / 1000:.0f} KB)"
        )
        return [f"{name}: {line}" for line in wrong]
    path = FOLDER / f"{name}.ipynb"
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    temp.write_text(text, encoding="utf-8")
    os.replace(temp, path)
    print(f"{path.relative_to(ROOT)}  {seconds:6.1f} s  {len(text) / 1000:6.1f} KB", flush=True)
    return []


def source_path(name: str) -> Path:
    return FOLDER / "source" / f"{name}.md"


def read_source(name: str) -> nbformat.NotebookNode:
    """The notebook that a source describes, without outputs; cells are numbered from cell-00."""
    text = source_path(name).read_text(encoding="utf-8")
    book = jupytext.reads(text, fmt="md:myst")
    book.metadata = nbformat.from_dict(METADATA)
    book.nbformat, book.nbformat_minor = 4, 5
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number:02}"
        if cell.cell_type == "markdown":  # the notebook lies a folder higher than its source
            cell.source = re.sub(r"\]\(\.\./", "](", cell.source)
    return book


def execute(book: nbformat.NotebookNode, folder: Path) -> str:
    """Run all cells in a fresh kernel that starts in `folder` -> what went wrong, or ""."""
    deadline = time.monotonic() + MOST_SECONDS
    client = NotebookClient(
        book,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,  # or every cell gets four timestamps
        coalesce_streams=True,
        timeout_func=lambda cell: max(1, int(deadline - time.monotonic())),
    )
    environment = dict(os.environ)
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        client.execute()
    except CellExecutionError as error:
        bad = next(c for c in book.cells if any(o.output_type == "error" for o in outputs(c)))
        return f"{bad.id}: {error.ename}: {error.evalue}{where(outputs(bad)[-1])}"
    except CellTimeoutError:
        return f"no end within {MOST_SECONDS} s"
    except DeadKernelError:
        return "the kernel died"
    finally:
        os.environ.clear()
        os.environ.update(environment)
    return ""


def where(error: nbformat.NotebookNode) -> str:
    """The line of a cell in which an error arose, as a traceback of IPython marks it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    marked = re.findall(r"^-+> *\d+ *(.*)$", text, re.MULTILINE)
    return f" in `{marked[0].strip()}`" if marked else ""


def outputs(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return cell.get("outputs", [])


# ---------------------------------------------------------------- what may be wrong


def check(name: str) -> list[str]:
    """Compare source, notebook and quotes, without a kernel -> a line for each thing wrong."""
    path = FOLDER / f"{name}.ipynb"
    if not source_path(name).exists():
        return [f"{name}: there is no notebooks/source/{name}.md"]
    if not path.exists():
        return [f"{name}: there is no notebooks/{name}.ipynb: make notebooks"]
    source, stored = read_source(name), nbformat.read(path, as_version=4)
    wrong = differences(source, stored) + unfit(stored, path.stat().st_size)
    wrong += stale(stored, quotes(stored))
    return [f"{name}: {line}" for line in wrong]


def differences(source: nbformat.NotebookNode, stored: nbformat.NotebookNode) -> list[str]:
    """Where the cells of source and notebook are not the same: type, text or tags."""
    wrong = []
    if len(source.cells) != len(stored.cells):
        counts = f"{len(source.cells)} cells in the source, {len(stored.cells)} in the notebook"
        wrong.append(f"{counts}: make notebooks")
    for theirs, ours in zip(source.cells, stored.cells):
        if whole(theirs) != whole(ours):
            line = first_difference(ours.source, theirs.source)
            wrong.append(f"{theirs.id}: source and notebook differ: {line}: make notebooks")
    return wrong


def whole(cell: nbformat.NotebookNode) -> tuple:
    return cell.id, cell.cell_type, cell.source, tags(cell)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def first_difference(was: str, now: str) -> str:
    """The first line in which two texts differ."""
    lines = [*was.splitlines(), None], [*now.splitlines(), None]
    for number, (old, new) in enumerate(zip(*lines), start=1):
        if old != new:
            return f"line {number} was {old!r}, is {new!r}"
    return "only the tags or blank ends"


def unfit(book: nbformat.NotebookNode, size: int) -> list[str]:
    """What a notebook must not have, whatever it says: -> a line for each such thing."""
    wrong = []
    if size > MOST_BYTES:
        largest = max(book.cells, key=lambda cell: len(json.dumps(cell)))
        share = f"{len(json.dumps(largest)) / 1000:.0f} KB of it are in {largest.id}"
        wrong.append(f"{size / 1000:.0f} KB, more than {MOST_BYTES / 1000:.0f}; {share}")
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        wrong.append("the cells were not run once each, from first to last: make notebooks")
    if not code or tags(code[0]) != ["setup"]:
        wrong.append("the first code cell is the one that finds the repository, tagged setup")
    places = {str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir() + "/"} - {"/"}
    for cell in code:
        for output in outputs(cell):
            text = text_of(output)
            if output.output_type == "error":
                wrong.append(f"{cell.id}: ended in {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                wrong.append(f"{cell.id}: writes to stderr: {text.strip().splitlines()[0]}")
            for place in places:
                if place in text:
                    wrong.append(f"{cell.id}: shows where things lie on this disk: {place}")
            if found := re.search(r"<[^<>]* at 0x\w+>", text):
                wrong.append(f"{cell.id}: shows an address in memory: {found[0]}")
    return wrong


def text_of(output: nbformat.NotebookNode) -> str:
    """What an output says: of a picture, the words in it."""
    data = output.get("data", {})
    return output.get("text") or data.get("text/markdown") or data.get("text/plain") or ""


# ---------------------------------------------------------------- what is quoted


def quotes(book: nbformat.NotebookNode) -> dict[str, tuple[str, list[str]] | str]:
    """Compute the cells tagged setup and quote, in this process.

    -> {cell id: (printed, [what was shown, ...]) of each quote, or the error that it ended in}
    """
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.reset()
    before, path = Path.cwd(), list(sys.path)
    os.chdir(FOLDER)
    found = {}
    try:
        for cell in book.cells:
            if {"setup", "quote"} & set(tags(cell)):
                with capture_output() as captured:
                    result = shell.run_cell(cell.source)
                shown = [text_of({"data": output.data}) for output in captured.outputs]
                error = result.error_before_exec or result.error_in_exec
                if error is not None:
                    found[cell.id] = f"{type(error).__name__}: {error}"
                elif "quote" in tags(cell):
                    found[cell.id] = (captured.stdout, shown)
    finally:
        os.chdir(before)
        sys.path[:] = path
    return found


def stale(stored: nbformat.NotebookNode, found: dict) -> list[str]:
    """Where the stored outputs of quotes are not what was computed just now."""
    wrong = []
    for cell in stored.cells:
        if cell.id not in found:
            continue
        now, was = found[cell.id], said(cell)
        if isinstance(now, str):
            wrong.append(f"{cell.id}: what it quotes cannot be computed: {now}")
        elif now != was:
            texts = ["\n".join([printed, *shown]) for printed, shown in (was, now)]
            line = first_difference(*texts)
            wrong.append(f"{cell.id}: what it quotes has changed: {line}: make notebooks")
    return wrong


def said(cell: nbformat.NotebookNode) -> tuple[str, list[str]]:
    """-> what a cell has printed, and the texts of all that it has shown"""
    printed = [text_of(output) for output in outputs(cell) if output.output_type == "stream"]
    shown = [text_of(output) for output in outputs(cell) if output.output_type != "stream"]
    return "".join(printed), shown


# ---------------------------------------------------------------- running, without writing


def run(name: str, folder: str) -> list[str]:
    """Execute a notebook in a fresh kernel that starts in `folder`, and compare its quotes."""
    path = FOLDER / f"{name}.ipynb"
    if not path.exists():
        return [f"{name}: there is no notebooks/{name}.ipynb: make notebooks"]
    stored, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    began = time.monotonic()
    if failed := execute(fresh, ROOT / folder):
        return [f"{name}: {failed}"]
    seconds = time.monotonic() - began
    quoted = {cell.id: said(cell) for cell in fresh.cells if "quote" in tags(cell)}
    wrong = unfit(fresh, 0) + stale(stored, quoted)
    print(f"{path.relative_to(ROOT)}  {seconds:6.1f} s, started in {folder}", flush=True)
    return [f"{name}: {line}" for line in wrong]


if __name__ == "__main__":
    sys.exit(main())

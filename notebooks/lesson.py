"""What the notebooks share: quoting scripts, starting ranks, reading records, drawing.

Nothing here is part of the lessons, and no stage imports it. A notebook says

    lesson.show_source("01_baseline/train.py", "train_epoch")   code as it stands in the file now
    lesson.show_diff("01_baseline", "02_dp")                     what a stage changes, computed
    lesson.records()["01_baseline-1xcpu"]                        what was measured, and committed
    with lesson.picture("Backward takes longest", height=2) as axes: ...
    lesson.table(["device", "images"], [["0", 60], ["1", 60]])

and, in a cell whose first line is `%%torchrun 2`, what two ranks shall do.
"""

import argparse
import ast
import base64
import difflib
import functools
import html
import io
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
RECORDS = "docs/timings/cpu-2-cores"
# Okabe and Ito's colours, which the colour-blind can tell apart. A phase has the colour that it
# has in compare.py's pictures; RANKS are for ranks and for whatever else is only numbered.
COLORS = {
    "data": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exposed": "#D55E00",
    "optimizer": "#E69F00",
}
RANKS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]
DARK = ("#0072B2", "#D55E00", "#009E73", "#000000")  # of them; white words are read on these
STYLE = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "image.cmap": "Greys",
    "image.interpolation": "nearest",
}


# ---------------------------------------------------------------- quoting


def show_source(path: str, *names: str) -> None:
    """Show functions or classes of a script as they stand there now; "Class.method" works too."""
    show_code(source(path, *names), "python", caption=path)


def source(path: str, *names: str) -> str:
    """The text of functions and classes of a script, with their decorators.

    path: from the repository's root. Raises LookupError for a name that is not there.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    parts = []
    for name in names:
        node = find(ast.parse(text), name.split("."))
        if node is None:
            raise LookupError(f"{path} has no {name}")
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        parts.append(textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])))
    return "\n\n\n".join(parts)


def find(tree: ast.AST, name: list[str]) -> ast.AST | None:
    """The function or class of that name, ["Class", "method"] for a method."""
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "name", None) == name[0] and hasattr(node, "decorator_list"):
            return find(node, name[1:]) if name[1:] else node
    return None


def show_diff(before: str, after: str, *names: str, context: int = 3) -> None:
    """Show what one stage's train.py changes in another's, above the ruled line.

    before, after: stages, such as "01_baseline", or scripts: "03_ddp_spawn/from_scratch.py".
    names: only these functions or classes of both; context: unchanged lines around a change.
    """
    changes = diff(before, after, *names, context=context)
    show_code(changes, "diff", caption=f"from {script(before)} to {script(after)}")


def diff(before: str, after: str, *names: str, context: int = 3) -> str:
    """The unified diff that show_diff shows."""
    sides = []
    for path in (script(before), script(after)):
        text = source(path, *names) if names else upper_half(path)
        sides.append(text.splitlines())
    changes = list(difflib.unified_diff(*sides, n=context, lineterm=""))[2:]
    return "\n".join(
        place_of(line, sides[1], context) if line.startswith("@@") else line for line in changes
    )


def place_of(header: str, after: list[str], context: int) -> str:
    """In place of a hunk's line numbers, which age: the function or class in which it begins."""
    start = int(header.partition("+")[2].partition(",")[0].partition(" ")[0])
    before = "\n".join(after[: start + context])
    names = re.findall(r"^(?:def|class) (\w+)", before, re.MULTILINE)
    return f"@@ {names[-1]}" if names else "@@"


def script(stage: str) -> str:
    return stage if stage.endswith(".py") else f"{stage}/train.py"


def upper_half(path: str) -> str:
    """A script down to its ruled line; all of it where there is none."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return text.partition(import_module("tools.sync_shared_half").RULE)[0].rstrip()


# ---------------------------------------------------------------- showing


def publish(data: dict[str, str], metadata: dict | None = None) -> None:
    """Put one output under the cell: {MIME type: text}."""
    from IPython.display import display

    display(data, raw=True, metadata=metadata or {})


def show_code(text: str, language: str, caption: str = "") -> None:
    """Show text as code: coloured where HTML is shown, plain where it is not.

    language: "python", "diff" or "text". Lines that a diff adds are blue, those it removes orange.
    """
    lines = {"python": python_lines, "diff": diff_lines}.get(language, plain_lines)(text)
    box = "background:#f7f7f7;color:#1a1a1a;padding:6px 10px;line-height:1.35"
    box += ";white-space:pre-wrap;overflow-wrap:anywhere"  # a phone is narrower than our lines
    pre = f'<pre style="font-family:Menlo,Consolas,monospace;{box}">{lines}</pre>'
    head = f'<div style="font-size:smaller">{html.escape(caption)}</div>' if caption else ""
    publish({"text/html": head + pre, "text/plain": f"{caption}\n\n{text}" if caption else text})


def python_lines(text: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(text, PythonLexer(), HtmlFormatter(nowrap=True, noclasses=True)).rstrip()


def diff_lines(text: str) -> str:
    tint = {"+": "#cfe8f9", "-": "#fbdfc9", "@": "#e6e6e6"}
    lines = []
    for line in text.splitlines():
        inside = html.escape(line)
        if line[:1] in tint:
            inside = f'<span style="background:{tint[line[0]]}">{inside}</span>'
        lines.append(inside)
    return "\n".join(lines)


def plain_lines(text: str) -> str:
    return html.escape(text)


def table(titles: list[str], rows: list[list], align: str = "") -> None:
    """Show a table. align: a letter per column, l or r; the first is l and the rest r if not given.

    Numbers are shown as they are: format them first.
    """
    align = align or "l" + "r" * (len(titles) - 1)
    lines = [[str(cell) for cell in line] for line in (titles, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    padded = [
        [
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(line, widths, align)
        ]
        for line in lines
    ]
    ruler = ["---:" if side == "r" else "---" for side in align]
    markdown = [f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:])]
    plain = ["  ".join(line).rstrip() for line in padded]
    publish({"text/markdown": "\n".join(markdown), "text/plain": "\n".join(plain)})


@contextmanager
def picture(title: str, height: float = 3.0, width: float = 7.2, **grid) -> Iterator:
    """A picture whose title states what is to be seen: `with picture("...") as axes: ...`.

    height, width: inches, at 100 pixels each; grid: nrows, ncols, sharex, width_ratios, ... of
    matplotlib's subplots, with which the axes come as an array. The body may also set the title
    that only it knows: axes.figure.suptitle(...).
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(title, width, height)
        axes = figure.subplots(**grid)
        yield axes
        words = said_in(figure)
        data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": words}
        publish(data, {"image/png": {"alt": words.partition("\n")[0]}})


def stack(axes, bars: dict[str, dict[str, float]], colors: dict[str, str], digits: int = 1) -> None:
    """Horizontal bars, one under the other, each of parts in a row: {bar: {part: length}}.

    Parts with room for it carry their length, with so many digits after the point. The legend
    stands above the axes.
    """
    longest = max(sum(parts.values()) for parts in bars.values())
    middle = {"ha": "center", "va": "center", "fontsize": 11}
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for part, length in parts.items():
            color = colors[part]
            axes.barh(y, length, 0.7, left, color=color, label=None if y else part)
            if length > 0.075 * longest:
                ink = "white" if color in DARK else "black"
                axes.text(left + length / 2, y, f"{length:.{digits}f}", color=ink, **middle)
            left += length
    axes.set_yticks(range(len(bars)), bars.keys())
    axes.set_ylim(len(bars) - 0.5, -0.5)
    above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1)}
    axes.legend(ncols=len(colors), columnspacing=1, handlelength=1.2, **above)


def film(
    title: str,
    draw: Callable,
    frames: int,
    seconds: float = 1.0,
    height: float = 3.0,
    width: float = 7.2,
    **grid,
) -> None:
    """A moving picture: draw(axes, k) draws frame k of 0 ... frames - 1 on empty axes.

    It is a PNG with several frames, which browsers play; what cannot play it shows the last one.
    The last frame stands three times as long, so it should sum the others up.
    """
    from matplotlib import rc_context
    from PIL import Image

    images = []
    with rc_context(STYLE):
        for k in range(frames):
            figure = new_figure(title, width, height)
            draw(figure.subplots(**grid), k)
            images.append(Image.open(io.BytesIO(png(figure))).convert("RGB"))
    strip = Image.new("RGB", (images[0].width, frames * images[0].height))
    for k, image in enumerate(images):
        strip.paste(image, (0, k * image.height))
    octree = Image.Quantize.FASTOCTREE  # the one method that leaves white white
    palette = strip.quantize(128, octree, dither=0)  # for all frames: that makes the file small
    images = [image.quantize(palette=palette, dither=0) for image in images]
    file, durations = io.BytesIO(), [1000 * seconds] * (frames - 1) + [3000 * seconds]
    still, more = images[-1], {"save_all": True, "append_images": images}
    still.save(file, "PNG", default_image=True, duration=durations, **more)
    words = said_in(figure)
    data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": words}
    publish(data, {"image/png": {"alt": words.partition("\n")[0]}})


def new_figure(title: str, width: float, height: float):
    """An empty figure that pyplot does not know, so that nothing shows it a second time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    heading = figure.suptitle("", x=0.01, ha="left", fontsize=13, fontweight="bold")
    lines = [""]
    for word in title.split():  # a line takes words as long as they fit
        heading.set_text(f"{lines[-1]} {word}".strip())
        fits = heading.get_window_extent().width < 98 * width
        lines = [*lines[:-1], heading.get_text()] if fits else [*lines, word]
    heading.set_text("\n".join(lines))
    return figure


def png(figure) -> bytes:
    """The picture in 256 colours at most, which makes the file small; no date or version in it.

    Raises ValueError for words that would be cut off at the picture's edge.
    """
    from PIL import Image

    file, small = io.BytesIO(), io.BytesIO()
    figure.draw_without_rendering()
    for text in words_in(figure):
        box = text.get_window_extent()
        if min(box.x0, box.y0) < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:
            raise ValueError(f"the picture has no room for {text.get_text()!r}")
    figure.savefig(file, format="png", metadata={"Software": None})
    Image.open(file).convert("RGB").quantize(256, dither=0).save(small, "PNG", optimize=True)
    return small.getvalue()


def words_in(figure) -> list:
    """The text objects of a figure that say something: title, labels, legends, annotations."""
    texts = list(figure.texts)  # the title is the first of them
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        texts += [*(legend.get_texts() if legend else []), *axes.texts]
    return [text for text in texts if text.get_text().strip() and text.get_visible()]


def said_in(figure) -> str:
    """The words of a figure, a line each: what the picture says to those who cannot see it."""
    return "\n".join(" ".join(text.get_text().split()) for text in words_in(figure))


# ---------------------------------------------------------------- records and data


def records(folder: str = RECORDS) -> dict[str, dict]:
    """The committed timing records in a folder, by file name without ".json".

    Where a run was repeated: the repeat with the median images/s.
    """
    rows = compare().read_folder(ROOT / folder)
    return {name: of_median_speed(repeats) for name, repeats in rows.items()}


def of_median_speed(repeats: list[dict]) -> dict:
    return sorted(repeats, key=compare().speed)[len(repeats) // 2]


def phases(record: dict | str) -> dict[str, float]:
    """Milliseconds of one step in each phase, as compare.py computes and draws them.

    record: one of them, or a name in RECORDS: then medians over its epochs and repeats.
    """
    repeats = compare().read_folder(ROOT / RECORDS)[record] if isinstance(record, str) else [record]
    found = compare().phases_of(repeats)
    return {phase: statistics.median(found[phase]) for phase in compare().PHASES}


def compare() -> ModuleType:
    """compare.py: its functions compute figures from records, such as speed and accuracy."""
    import matplotlib

    backend = matplotlib.get_backend()
    module = import_module("compare")
    matplotlib.use(backend)  # compare.py draws into files only; your own plots shall still show
    return module


@functools.cache
def digits(train: int = 6000, test: int = 1000) -> Path:
    """A folder with digits drawn now, in MNIST's format: the same ones at every call and place.

    Small, and no network needed. It goes when the notebook's kernel ends.
    """
    folder = Path(temporary_folder(), f"drawn-{train}")
    command = [sys.executable, "tools/draw_digits.py", str(folder)]
    command += ["--train", str(train), "--test", str(test)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return folder


def temporary_folder() -> str:
    """A new folder, removed when Python ends."""
    folder = tempfile.TemporaryDirectory(prefix="lesson-", ignore_cleanup_errors=True)
    KEPT.append(folder)
    return folder.name


KEPT: list[tempfile.TemporaryDirectory] = []


# ---------------------------------------------------------------- starting ranks


@dataclass
class Run:
    """What a command left. of torchrun: out, err and values have an entry for each rank."""

    code: int
    seconds: float
    out: list[str]
    err: list[str]
    launcher: str = ""  # what the launcher itself had to say
    values: list[dict] | None = None  # what the ranks have given: see give

    def __str__(self) -> str:
        """What the ranks have printed, rank by rank."""
        many = len(self.out) > 1
        lines = [
            f"rank {rank} | {line}" if many else line
            for rank, text in enumerate(self.out)
            for line in text.splitlines()
        ]
        return "\n".join(lines)


def torchrun(
    what: str | Path,
    ranks: int = 2,
    *flags: str,
    options: tuple[str, ...] = (),
    timeout: float = 120,
    env: dict[str, str] | None = None,
    gpus: bool = False,
    check: bool = True,
) -> Run:
    """Start a script on some ranks of this machine by torchrun, and wait for them.

    what: a file, from the repository's root, or the text of a script (with a line break in it).
    flags: for the script; options: for torchrun; env: variables for both. gpus: let the ranks see
    them; otherwise they are CPU processes with one thread each, also where there are GPUs.
    They work in a folder that is removed afterwards. Raises RuntimeError with the last lines of the
    ranks unless all end well (check=False: only if they do not end within `timeout` seconds).
    """
    with tempfile.TemporaryDirectory(prefix="lesson-", ignore_cleanup_errors=True) as folder:
        file = ROOT / what
        if "\n" in str(what):
            file = Path(folder, "script.py")
            file.write_text(str(what), encoding="utf-8")
        logs, given = Path(folder, "logs"), Path(folder, "given")
        given.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "--log-dir", str(logs), "--redirects", "3"]
        command += [*options, str(file), *flags]
        variables = {"OMP_NUM_THREADS": "1", "LESSON_GIVEN": str(given), **(env or {})}
        variables |= {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
        run = start(command, timeout=timeout, env=variables, folder=folder)
        run.launcher = run.err[0]
        run.out, run.err = (
            [log(logs, rank, name, folder) for rank in range(ranks)] for name in LOGS
        )
        paths = [given / f"{rank}.json" for rank in range(ranks)]
        run.values = [json.loads(path.read_text()) if path.exists() else {} for path in paths]
    if check and run.code:
        said = [line for text in (*run.err, run.launcher) for line in text.splitlines()[-5:]]
        raise RuntimeError("a rank has failed\n" + "\n".join(said))
    return run


LOGS = ("stdout.log", "stderr.log")


def log(logs: Path, rank: int, name: str, folder: str) -> str:
    """What a rank wrote to a stream, over all attempts of its launcher."""
    paths = sorted(logs.glob(f"*/attempt_*/{rank}/{name}"))
    return without_places("".join(path.read_text(errors="replace") for path in paths), folder)


def start(
    command: list[str],
    timeout: float = 120,
    env: dict[str, str] | None = None,
    folder: str | Path = ROOT,
) -> Run:
    """Run a command and wait for it; nothing that it has started is left afterwards.

    env: variables on top of this process's. Raises RuntimeError if it takes more than `timeout` s.
    """
    mark = str(uuid.uuid4())
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | (env or {}) | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        end(process, mark)
    if late:
        raise RuntimeError(f"no end within {timeout} seconds: {shlex.join(command)}")
    seconds = time.monotonic() - began
    out, err = (without_places(text, folder) for text in (out, err))
    return Run(process.returncode, seconds, [out], [err])


MARK = "LESSON_RUN"


def end(process: subprocess.Popen, mark: str) -> None:
    """End a command that may still run, and (on Linux) all that it has started."""
    if process.poll() is None:
        process.terminate()  # a launcher ends its ranks itself when it is asked to
        with_patience = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < with_patience:
            time.sleep(0.05)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}" in environ.read_text(errors="replace"):
                os.kill(int(environ.parent.name), signal.SIGKILL)
        except OSError:  # ended while we looked, or not ours
            continue
    if process.poll() is None:
        process.kill()
    if process.stdout and not process.stdout.closed:
        process.communicate()


def without_places(text: str, folder: str | Path) -> str:
    """Take out where things lie on this disk: it is different on every machine."""
    for place in dict.fromkeys([str(folder), str(Path(folder).resolve()), str(ROOT), sys.prefix]):
        text = text.replace(f"{place}/", "")
    return text.replace(sys.executable, "python")


def give(**values) -> None:
    """In a rank: hand values to the notebook, which finds them in run.values[rank].

    They travel as JSON; tensors arrive as lists.
    """
    path = Path(os.environ["LESSON_GIVEN"], f"{os.environ['RANK']}.json")
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values, default=lambda tensor: tensor.tolist()))


def torchrun_magic(line: str, cell: str) -> None:
    """%%torchrun RANKS [--timeout S] [--gpus]: the cell is a script, and some ranks run it.

    What they print is shown rank by rank; the Run is lesson.run until the next one.
    """
    global run
    parser = argparse.ArgumentParser(prog="%%torchrun")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--gpus", action="store_true")
    args = parser.parse_args(shlex.split(line))
    run = torchrun(f"{cell}\n", args.ranks, timeout=args.timeout, gpus=args.gpus)
    if text := str(run):
        print(text)


run: Run | None = None


def register() -> None:
    """Make %%torchrun known, where there is a notebook to know it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell:
        shell.register_magic_function(torchrun_magic, "cell", "torchrun")


register()

"""Pictures: each has a title that states what is to be seen, and carries its words as text."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.display import display
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lib.pictures import BLACK, INK, png
from lib.records import PHASES
from notebooks.pictures.svg import words_of

# Okabe and Ito's colours: of a phase, and of ranks and whatever else is only numbered.
COLORS = PHASES
RANKS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"]
GRAY = "#6e7781"  # of lines and areas in the background
DARK = ("#0072B2", "#D55E00", "#009E73")  # of them; white words are read on these
DIGITS = LinearSegmentedColormap.from_list("digits", ["white", BLACK])
STYLE = INK | {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "image.interpolation": "nearest",
}
WIDTH = 7.2  # inches; with 200 pixels per inch twice what is shown, for sharp screens
TITLE = 72  # characters that fit into one line


@contextmanager
def picture(title: str, height: float = 3.0, **grid) -> Iterator:
    """A picture whose title states what is to be seen: `with picture("...") as axes: ...`.

    height: inches; grid: nrows, ncols, sharex, width_ratios, ... of matplotlib's subplots, with
    which the axes come as an array.
    """
    if len(title) > TITLE:
        raise ValueError(f"a title has one line, of at most {TITLE} characters: {title}")
    with rc_context(STYLE):  # pyplot does not know the figure, so nothing shows it a second time
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        yield figure.subplots(**grid)
        publish(png(figure), figure)


def publish(picture: bytes, figure: Figure) -> None:
    """Put a picture under the cell: with its title for screen readers, its words as plain text."""
    words = [" ".join(text.split()) for text in words_in(figure)]
    data = {"image/png": base64.b64encode(picture).decode(), "text/plain": "\n".join(words)}
    shown = {"alt": words[0], "width": round(100 * WIDTH)}
    display(data, raw=True, metadata={"image/png": shown})


def show_moving(svg: str) -> None:
    """Put a picture that moves (an SVG file) under the cell, with its words as plain text."""
    words = words_of(svg)
    data = {"image/svg+xml": svg, "text/plain": "\n".join(words)}
    display(data, raw=True, metadata={"image/svg+xml": {"alt": words[0]}})


def words_in(figure: Figure) -> list[str]:
    """Title, labels, legends and annotations of a figure."""
    words = [text.get_text() for text in figure.texts]  # the title is the first of them
    for axes in figure.axes:
        words += [axes.get_title(), axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()]
        legend = axes.get_legend()
        texts = [*(legend.get_texts() if legend else []), *axes.texts]
        words += [text.get_text() for text in texts]
    return [text for text in words if text.strip()]


def stack(axes, bars: dict[str, dict[str, float]], colors: dict[str, str]) -> None:
    """Horizontal bars, one under the other, each of parts in a row: {bar: {part: length}}.

    A part that has room for it carries its length. The legend stands above the axes.
    """
    longest = max(sum(parts.values()) for parts in bars.values())
    character = 0.018 * longest  # as wide as a digit of the lengths
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for part, length in parts.items():
            color = colors[part]
            axes.barh(y, length, 0.7, left, color=color, label=None if y else part)
            text = f"{length:.1f}"
            if length > len(text) * character:
                style = {"color": "white" if color in DARK else "black", "fontsize": 11}
                middle = left + length / 2
                axes.text(middle, y, text, ha="center", va="center", **style)
            left += length
    axes.set_yticks(range(len(bars)), bars.keys())
    axes.set_ylim(len(bars) - 0.5, -0.5)
    above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1)}
    axes.legend(ncols=len(colors), columnspacing=1, handlelength=1.2, **above)

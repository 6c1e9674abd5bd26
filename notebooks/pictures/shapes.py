"""Boxes and arrows."""

from importlib import import_module

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

lesson = import_module("notebooks.lesson")
GREEN, ORANGE, SKY = "#009E73", "#D55E00", "#56B4E9"


def box(axes: Axes, x: float, y: float, text: str, color: str, width=3.0, height=1.6) -> None:
    """A box with words in it, around a point."""
    look = {"fill": False, "edgecolor": color, "linewidth": 2.5}
    axes.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=11.5)


def arrow(axes: Axes, start: tuple, end: tuple, color=lesson.GRAY, style="-|>") -> None:
    look = {"arrowstyle": style, "color": color, "linewidth": 2}
    axes.annotate("", end, start, arrowprops=look, zorder=3)


def bare(axes: Axes, width: tuple, height: tuple, title: str = "") -> None:
    """No axes to be seen, only what is drawn on them: from and to so much in each direction."""
    axes.set(xlim=width, ylim=height, title=title)
    axes.set_axis_off()

"""What the moving pictures are made of: boxes, words, arrows, and when they are seen.

Only CSS moves a picture, so it also moves where no script may run, as on GitHub. What stands in the
file without motion is the whole picture, for readers who asked for less motion. The motion begins
with the whole picture, too. The colours follow the reader's theme.
"""

import html
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

# On a phone of 390 pixels GitHub shows a picture 358 pixels wide, so words of 18 units are 11 high.
WIDTH = 600
FADE = 0.4  # seconds in which a thing appears
OVERVIEW = 1.5  # seconds of the end of the motion, which is the whole picture, come first
Words = dict[str, str] | None
REST = 0.45  # how much is seen of what is not the subject at this moment

# Okabe and Ito's colours, which the colour-blind can tell apart: one for each rank or bucket.
STYLE = """
.pic { --ink: #1f2328; --dim: #59636e; --paper: #ffffff; --ground: #f6f8fa; --line: #8c959f;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b5588f; --mix: #6e7781 }
@media (prefers-color-scheme: dark) { .pic { --ink: #f0f6fc; --dim: #9da7b1; --paper: #0d1117;
  --ground: #161b22; --line: #6e7681; --c0: #56b4e9; --c1: #f08a3c; --c2: #2fc598; --c3: #d98bb9;
  --mix: #9da7b1 } }
.pic text { font: 20px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  fill: var(--ink) }
.pic .small { font-size: 18px } .pic .dim { fill: var(--dim) } .pic .bold { font-weight: 700 }
.pic .middle { text-anchor: middle } .pic .right { text-anchor: end }
.pic .paper { fill: var(--paper); stroke: var(--line) }
.pic .ground { fill: var(--ground); stroke: var(--line) }
.pic .dashed { fill: none; stroke: var(--line); stroke-width: 2; stroke-dasharray: 7 5 }
.pic .moving { fill: var(--paper); stroke: var(--ink); stroke-width: 2.5 }
.pic .thin { fill: none; stroke: var(--line); stroke-width: 1 }
.pic .line { fill: none; stroke: var(--dim); stroke-width: 2 }
.pic .dotted { fill: none; stroke: var(--dim); stroke-width: 2; stroke-dasharray: 2 5 }
.pic .tint { fill: var(--own); fill-opacity: .18; stroke: var(--own); stroke-width: 2 }
.pic .full { fill: var(--own) } .pic .edge { fill: none; stroke: var(--own); stroke-width: 3 }
.pic .words { fill: var(--own) } .pic .inverse { fill: var(--paper); font-weight: 700 }
.pic .c0 { --own: var(--c0) } .pic .c1 { --own: var(--c1) } .pic .c2 { --own: var(--c2) }
.pic .c3 { --own: var(--c3) } .pic .mix { --own: var(--mix) }
"""
AWAY = "transform: translate(var(--x, 0px), var(--y, 0px))"
HOME = "transform: none"
MOTION = "@media screen and (prefers-reduced-motion: no-preference)"


class Picture:
    """A picture that grows while it is drawn.

    name: stands before its CSS classes, so two pictures on one page have none in common.
    title: says what is to be seen. height: in units of which WIDTH are the width.
    seconds: until the motion begins again.
    words: sentences of another language by the English ones; English where one is missing. Its
        "lang" is the code of the language.
    """

    def __init__(self, name: str, title: str, height: float, seconds: float, words: Words = None):
        self.name = name
        self.height = height
        self.seconds = seconds
        self.words = words or {}
        self.title = self.say(title)
        self.body: list[str] = []
        self.classes: dict[str, str] = {}  # of each motion: its keyframes -> its CSS class
        self.hidden: set[str] = set()  # classes of what is seen in motion only
        self.box(0.5, 0.5, WIDTH - 1, height - 1, "paper", round=10)
        self.text(WIDTH / 2, 34, title, look="bold middle")

    def say(self, english: str, *values) -> str:
        """A sentence in the language of the picture, with values where it has {}."""
        return self.words.get(english, english).format(*values)

    # ------------------------------------------------------------ what is drawn

    def text(self, x: float, y: float, english: str, *values, look: str = "") -> None:
        """Words on one line; y is that of the line's foot. look: CSS classes."""
        said = html.escape(self.say(english, *values), quote=False)
        self.body.append(f'<text x="{short(x)}" y="{short(y)}" class="{look}">{said}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str, round=6) -> None:
        place = f'x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}"'
        self.body.append(f'<rect {place} rx="{round}" class="{look}"/>')

    def boxes(self, corners: list[tuple[float, float]], width, height, look: str) -> None:
        """Many boxes of one size as one shape: in the file they are short."""
        shape = f"h{short(width)}v{short(height)}h{short(-width)}z"
        outlines = "".join(f"M{short(x)} {short(y)}{shape}" for x, y in corners)
        self.body.append(f'<path d="{outlines}" class="{look}"/>')

    def labelled(self, x, y, width, height, look: str, english: str, *values) -> None:
        """A box with one line of words in its middle. "small" in its look is for the words."""
        self.box(x, y, width, height, look)
        size = "small middle" if "small" in look else "middle"
        self.text(x + width / 2, y + height / 2 + 7, english, *values, look=size)

    def dot(self, x: float, y: float, radius: float, look: str) -> None:
        self.body.append(f'<circle cx="{short(x)}" cy="{short(y)}" r="{radius}" class="{look}"/>')

    def path(self, points: list[tuple[float, float]], look: str = "line", arrow=False) -> None:
        """A line through points. arrow: with a head at its end."""
        corners = " ".join(f"{short(x)} {short(y)}" for x, y in points)
        head = f' marker-end="url(#{self.name}-head)"' if arrow else ""
        self.body.append(f'<path d="M{corners}" class="{look}"{head}/>')

    # ------------------------------------------------------------ what of it moves
    # Each of these is used as `with picture.appears(2):`, and what is drawn inside moves so.

    def appears(
        self, start: float, across: float = 0, down: float = 0, takes: float = FADE, still=True
    ):
        """Seen from a second on, until the end. It comes from so far across and down.

        still: is it also seen in the picture without motion?
        """
        end = self.seconds
        moments = {
            0: f"opacity: 0; {AWAY}",
            start: f"opacity: 0; {AWAY}",
            start + min(FADE, takes): "opacity: 1",
            start + takes: f"opacity: 1; {HOME}",
            end - FADE: f"opacity: 1; {HOME}",
            end: f"opacity: 0; {HOME}",
        }
        name = self.frames(moments)
        if not still:
            self.hidden.add(name)
        return self.group(name, across, down)

    def travels(self, start: float, end: float, across: float = 0, down: float = 0):
        """Seen only from start to end, while it goes so far across and down."""
        moments = {
            0: f"opacity: 0; {HOME}",
            start: f"opacity: 0; {HOME}",
            start + 0.2: f"opacity: 1; {HOME}",
            end - 0.2: f"opacity: 1; {AWAY}",
            end: f"opacity: 0; {AWAY}",
            self.seconds: f"opacity: 0; {AWAY}",
        }
        name = self.frames(moments)
        self.hidden.add(name)
        return self.group(name, across, down)

    def lit(self, start: float, end: float):
        """Always seen, and clearly from start to end. At the end of the motion all is clear."""
        moments = {
            0: f"opacity: {REST}",
            start: f"opacity: {REST}",
            start + FADE: "opacity: 1",
        }
        overview = self.seconds - OVERVIEW
        if end + FADE < overview:
            moments |= {
                end: "opacity: 1",
                end + FADE: f"opacity: {REST}",
                overview: f"opacity: {REST}",
                overview + FADE: "opacity: 1",
            }
        moments[self.seconds] = "opacity: 1"
        return self.group(self.frames(moments))

    def grows(self, start: float, end: float):
        """It grows from its left end."""
        moments = {
            0: "transform: scaleX(0)",
            start: "transform: scaleX(0); animation-timing-function: linear",
            end: "transform: none",
            self.seconds: "transform: none",
        }
        return self.group(self.frames(moments))

    def frames(self, moments: dict[float, str]) -> str:
        """The CSS class of a motion: what holds at these seconds."""
        steps = []
        for second, declarations in moments.items():
            percent = min(100 * second / self.seconds, 100)
            steps.append(f"{percent:.1f}% {{ {declarations} }}")
        keyframes = " ".join(steps)
        return self.classes.setdefault(keyframes, f"{self.name}-{len(self.classes)}")

    @contextmanager
    def group(self, motion: str, across: float = 0, down: float = 0) -> Iterator[None]:
        """motion: a CSS class. across, down: how far away the motion begins or ends."""
        style = ""
        if across or down:
            style = f' style="--x:{short(across)}px;--y:{short(down)}px"'
        self.body.append(f'<g class="{motion}"{style}>')
        yield
        self.body.append("</g>")

    # ------------------------------------------------------------ the file

    def svg(self, description: str, data: dict) -> str:
        """The whole file. description: for readers who do not see it. data: see data_of."""
        numbers = html.escape(json.dumps({"picture": self.name, "data": data}), quote=False)
        size = f'viewBox="0 0 {WIDTH} {short(self.height)}"'
        size += f' width="{WIDTH}" height="{short(self.height)}"'
        if "lang" in self.words:
            size += f' lang="{self.words["lang"]}"'
        head = f'<marker id="{self.name}-head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5"'
        head += ' markerHeight="5" orient="auto"><path d="M0 0 8 4 0 8z" fill="#818b98"/></marker>'
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" class="pic">']
        lines += [f"<title>{html.escape(self.title, quote=False)}</title>"]
        lines += [f"<desc>{html.escape(description, quote=False)}</desc>"]
        lines += [f"<metadata>{numbers}</metadata>", f"<style>{STYLE}"]
        for name in sorted(self.hidden):
            lines.append(f".{name} {{ opacity: 0 }}")
        lines.append(f"{MOTION} {{ .pic .still {{ display: none }}")
        for keyframes, name in self.classes.items():
            how = f"{name} {short(self.seconds)}s {short(OVERVIEW - self.seconds)}s"
            how += " infinite ease-in-out"
            lines.append(f".{name} {{ animation: {how}; transform-box: fill-box }}")
            lines.append(f"@keyframes {name} {{ {keyframes} }}")
        lines += ["}", "</style>", f"<defs>{head}</defs>", *self.body, "</svg>"]
        return "\n".join(lines) + "\n"


def data_of(svg: str) -> tuple[str, dict]:
    """The name of a drawn picture, and the data from which it was drawn."""
    found = re.search(r"<metadata>(.*?)</metadata>", svg)
    drawn = json.loads(html.unescape(found[1]))
    return drawn["picture"], drawn["data"]


def words_of(svg: str) -> list[str]:
    """The title, and then the words in the picture."""
    found = re.findall(r"<(?:title|text)\b[^>]*>(.*?)<", svg)
    return [html.unescape(words) for words in found]


def short(value: float) -> str:
    """A length to a tenth: 12, 12.5, and never -0."""
    return f"{round(value, 1) + 0:g}"


def same_data(one, other) -> bool:
    """Are the data of two pictures equal? Numbers may differ by rounding."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-4)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_data, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_data(one[key], other[key]) for key in one)
    return one == other

"""Draws a film, as one SVG picture (a still) or as one page with its own script and style.

Both have the same lanes. The width of a bar is its time, so a bar may be thinner than a pixel.
"""

import json
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path

from ..speed.report import COLORS

TEMPLATE = Path(__file__).with_name("page.html")
WAIT = "wait"
KINDS = (WAIT, *COLORS)
LEGEND = {
    WAIT: "waits for a slower rank",
    "exposed": "DDP averages gradients",
    "collective": "collective of the script",
    "no core": "no core was free",
    "own": "own: the script's other lines",
    "optimizer": "optimizer.step()",
}
LETTER = 0.56  # the width of a letter, as a part of the size of the font
SMALLER = 0.85  # the font in a bar, next to that around it
QUIET = ' pointer-events="none"'  # a click on words is one on the bar below them
NARROW = 500  # pixels: below this width labels stand above the lanes
PAD = 12  # pixels around the picture


@dataclass(frozen=True)
class Place:
    """Where time is in the picture: `begin` is at `left`, and `end` is `width` pixels from it."""

    begin: float
    end: float
    left: float
    width: float
    font: float

    def x(self, moment):
        return self.left + self.width * (moment - self.begin) / (self.end - self.begin)


# ------------------------------------------------------------------ the two files


def still(film) -> str:
    """One SVG file. Its letters are large: in a README on a phone it is half as wide."""
    return draw(film, width=660, font=18, with_words=True)


def page(film) -> str:
    """One HTML file, which opens without a network and is readable without its script."""
    last = film.steps[-1]
    texts = {
        "TITLE": escape(film.title),
        "WIDE": draw(film, width=1080, font=14),
        "NARROW": draw(film, width=400, font=14, only=last),
        "SENTENCES": "\n".join(f"<li>{code(sentence)}</li>" for sentence in film.sentences),
        "TABLE": table_of(film),
        "CAPTION": escape(film.caption),
        "DATA": json.dumps(data_of(film)).replace("<", "\\u003c"),
    }
    return re.sub(r"@([A-Z]+)@", lambda found: texts[found[1]], TEMPLATE.read_text("utf-8"))


def code(sentence):
    """Words between backquotes are a line of the script."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(sentence))


def quoted(sentence):
    """The same in a picture, whose lines have one font."""
    return re.sub(r"`(.+?)`", r"“\1”", sentence)


def data_of(film):
    """What the script of the page needs: times in milliseconds from the beginning of the film."""
    lanes = []
    for lane in film.lanes:
        bars = []
        for bar in lane.bars:
            begin = round(1000 * (bar.begin - film.begin), 4)
            end = round(1000 * (bar.end - film.begin), 4)
            seconds = bar.end - bar.begin
            text = f"{bar.label}, {duration(seconds)}"
            bars.append([begin, end, text, bar.step])
        lanes.append({"rank": lane.rank, "bars": bars})
    return {"milliseconds": 1000 * (film.end - film.begin), "lanes": lanes}


def table_of(film):
    """The milliseconds of each step and rank, by what the bars show."""
    used = kinds_of(film)
    names = ["step", "rank", *used, "sum"]
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    rows = [f"<tr>{head}</tr>"]
    for step in film.steps:
        for lane in film.lanes:
            sums = sums_of(lane, step)
            texts = [str(step), str(lane.rank)]
            for kind in used:
                texts.append(f"{sums[kind]:.2f}")
            texts.append(f"{sums.total():.2f}")
            cells = "".join(f"<td>{text}</td>" for text in texts)
            rows.append(f"<tr>{cells}</tr>")
    return "\n".join(rows)


def sums_of(lane, step):
    """{what: milliseconds of a step}"""
    sums = Counter()
    for bar in lane.bars:
        if bar.step == step:
            sums[bar.what] += 1000 * (bar.end - bar.begin)
    return sums


def kinds_of(film):
    """What the lanes show long enough to be seen, in the order of the legend."""
    sums = Counter()
    for lane in film.lanes:
        for bar in lane.bars:
            sums[bar.what] += bar.end - bar.begin
    least = (film.end - film.begin) / 300
    return [kind for kind in KINDS if sums[kind] > least]


# ------------------------------------------------------------------ the picture


def draw(film, width, font, only=None, with_words=False) -> str:
    """-> an <svg>. only: the number of the one step to show. with_words: the sentences below."""
    narrow = width < NARROW
    place = place_of(film, width, font, only)
    height = 2.2 * font
    shapes = []
    y = PAD + font
    if with_words:
        shapes.append(words(PAD, y, film.title, "title", 1.1 * font))
        y += 1.9 * font
    else:
        y += 0.6 * font
    shapes += step_names(film, place, y, only)
    y += 0.5 * font
    top = y
    for lane in film.lanes:
        name = f"rank {lane.rank}"
        if narrow:
            y += 1.3 * font
            shapes.append(words(PAD + 5, y - 0.4 * font, name, "rank"))
        else:
            shapes.append(words(PAD, y + 0.65 * height, name, "rank"))
        shapes += bars(lane, place, y, height, only)
        y += height + 0.5 * font
    shapes += axis(place, y)
    shapes.append(f'<path class="now" d="M0 {top:.1f}V{y:.1f}" visibility="hidden"/>')
    y += 2.6 * font
    rows, y = legend(film, place, y, width)
    shapes += rows
    if with_words:
        rows, y = paragraphs(film, y, width, font)
        shapes += rows
    return svg(film, place, width, y + PAD, shapes, with_words)


def place_of(film, width, font, only):
    left = PAD
    if width >= NARROW:
        names = [f"rank {lane.rank} " for lane in film.lanes]
        letters = max(map(len, names))
        left += 1.1 * LETTER * font * letters
    begin = film.begin
    end = film.end
    if only is not None:
        spans = [lane.steps[only] for lane in film.lanes]
        begin = min(begin for begin, _ in spans)
        end = max(end for _, end in spans)
    return Place(
        begin=begin,
        end=end,
        left=left,
        width=width - left - PAD,
        font=font,
    )


def svg(film, place, width, height, shapes, is_file):
    """The element around the shapes. data-... tell the script of the page where time is."""
    look = "narrow" if width < NARROW else "wide"
    begin = 1000 * (place.begin - film.begin)
    end = 1000 * (place.end - film.begin)
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width} {height:.0f}",
        "class": look,
        "role": "img",
        "aria-label": escape(f"Lanes of {film.title}", quote=True),
        "font-family": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
        "font-size": place.font,
        "data-left": f"{place.left:.2f}",
        "data-width": f"{place.width:.2f}",
        "data-begin": f"{begin:.4f}",
        "data-end": f"{end:.4f}",
    }
    described = []
    if is_file:  # the page has these words, and a title would lie over the bars
        attributes["width"] = width
        attributes["height"] = f"{height:.0f}"
        described.append(f"<title>{escape(film.title)}</title>")
        described.append(f"<desc>{escape(film.caption)}</desc>")
    opening = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    ground = f'<rect class="paper" width="{width}" height="{height:.0f}" rx="8"/>'
    inside = "\n".join([*described, style(look), patterns(look), ground, *shapes])
    return f"<svg {opening}>\n{inside}\n</svg>\n"


def style(look):
    """Colours of phases are the same on light and dark ground. Paper and ink are not."""
    # A page has two pictures. The patterns of the one that is hidden cannot be used in the other.
    wait = f".{look} .{WAIT} {{ fill: url(#{look}-stripes) }}"
    no_core = f".{look} .no-core {{ fill: url(#{look}-dots) }}"
    lines = [
        ".paper { fill: #ffffff; stroke: #d1d9e0 }",
        "text { fill: #1f2328 } .quiet { fill: #59636e } .rank, .title { font-weight: 600 }",
        ".line { stroke: #59636e; fill: none } .edge { stroke: #1f2328; stroke-width: 2 }",
        ".now { stroke: #1f2328; stroke-width: 2 }",
        wait,
        no_core,
        "text.in { fill: #000000; text-anchor: middle } text.in-backward { fill: #ffffff }",
        ".halo { fill: #ffffff; opacity: 0.85 }",
    ]
    for kind, color in COLORS.items():
        if kind != "no core":
            lines.append(f".{kind} {{ fill: {color} }}")
    dark = [
        ".paper { fill: #14181d; stroke: #3d444d }",
        "text { fill: #e6e8eb } .quiet { fill: #a6adb5 } .line { stroke: #a6adb5 }",
        ".edge, .now { stroke: #ffffff }",
    ]
    media = "@media (prefers-color-scheme: dark) { " + " ".join(dark) + " }"
    return "<style>\n" + "\n".join([*lines, media]) + "\n</style>"


def patterns(look):
    stripes = (
        f'<pattern id="{look}-stripes" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="8" height="8" fill="#fdf1e8"/>'
        '<rect width="3" height="8" fill="#e88a4d"/></pattern>'
    )
    dots = (
        f'<pattern id="{look}-dots" width="5" height="5" patternUnits="userSpaceOnUse">'
        '<rect width="5" height="5" fill="#dddddd"/>'
        '<rect width="2" height="2" fill="#777777"/></pattern>'
    )
    return f"<defs>{stripes}{dots}</defs>"


def words(x, y, text, look="", font=None, more=""):
    size = f' font-size="{font:.1f}"' if font else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}"{size}{more}>{escape(text)}</text>'


def rectangle(x, y, width, height, look, more=""):
    place = f'x="{x:.2f}" y="{y:.1f}" width="{width:.3f}" height="{height:.1f}"'
    return f'<rect {place} class="{look}"{more}/>'


def bars(lane, place, y, height, only):
    """The bars of a rank, and a line where a step of this rank ends."""
    shapes = []
    texts = []
    for number, bar in enumerate(lane.bars):
        if only not in (None, bar.step) or bar.end <= bar.begin:
            continue
        x = place.x(bar.begin)
        width = place.x(bar.end) - x
        look = bar.what.replace(" ", "-")
        key = f' data-bar="{lane.rank} {number}"'
        shapes.append(rectangle(x, y, width, height, look, key))
        texts += label(bar, place, x, y, width, height)
    for begin, end in steps_of(lane, only):
        for moment in (begin, end):
            top = f"M{place.x(moment):.2f} {y - 3:.1f}"
            shapes.append(f'<path class="edge" d="{top}v{height + 6:.1f}"/>')
    return shapes + texts


def steps_of(lane, only):
    return [span for n, span in lane.steps.items() if only in (None, n)]


def label(bar, place, x, y, width, height):
    """Words in a bar: the longest that fit, in two lines if that helps, or none."""
    font = SMALLER * place.font
    with_time = f"{bar.label}, {duration(bar.end - bar.begin)}"
    first, _, second = bar.label.replace(" rank", ", rank").partition(", ")
    choices = [
        [with_time],
        [bar.label],
        [first, second],
        [bar.what],
    ]
    for lines in choices:
        letters = max(map(len, lines))
        room = LETTER * font * letters + 6
        if room > width or not all(lines):
            continue
        shapes = []
        kind = bar.what.replace(" ", "-")
        look = f"in in-{kind}"
        middle = x + width / 2
        below = y + height / 2 + font * (0.35 - 0.55 * (len(lines) - 1))
        if bar.what in (WAIT, "no core"):  # words on stripes need a ground
            left = middle - room / 2 + 1
            top = below - 0.95 * font
            high = 1.2 * font * len(lines)
            shapes.append(rectangle(left, top, room - 2, high, "halo", QUIET))
        for line in lines:
            shapes.append(words(middle, below, line, look, font, QUIET))
            below += 1.1 * font
        return shapes
    return []


def step_names(film, place, y, only):
    """Above the lanes, at the beginning of each step on the first of them."""
    shapes = []
    for n, (begin, _) in film.lanes[0].steps.items():
        if only in (None, n):
            shapes.append(words(place.x(begin), y, f"step {n}", "quiet"))
    return shapes


def axis(place, y):
    """A line with round times, each with its unit."""
    seconds = place.end - place.begin
    parts = max(2, place.width / (6 * place.font))
    step = round_time(seconds / parts)
    shapes = [f'<path class="line" d="M{place.left:.1f} {y:.1f}h{place.width:.1f}"/>']
    count = 0
    while count * step <= seconds:
        x = place.x(place.begin + count * step)
        shapes.append(f'<path class="line" d="M{x:.1f} {y:.1f}v5"/>')
        text = duration(count * step, exact=True)
        room = LETTER * place.font * len(text)
        leftmost = place.left + room / 2
        rightmost = place.left + place.width - room / 2
        x = min(max(x, leftmost), rightmost)
        middle = ' text-anchor="middle"'
        shapes.append(words(x, y + 1.4 * place.font, text, "quiet", more=middle))
        count += 1
    return shapes


def round_time(least):
    """The shortest time that is 1, 2 or 5 times a power of ten, and not shorter than this."""
    power = 10.0 ** floor(log10(least))
    for factor in (1, 2, 5):
        if power * factor >= least:
            return power * factor
    return 10 * power


def duration(seconds, exact=False):
    """In words, with its unit."""
    if seconds >= 10:
        return f"{seconds:.0f} s" if exact else f"{seconds:.1f} s"
    if exact:
        return f"{1000 * seconds:.4g} ms"
    digits = 1 if seconds >= 0.001 else 3
    return f"{1000 * seconds:.{digits}f} ms"


def legend(film, place, y, width):
    """-> what the colours mean, and where it ends."""
    shapes = []
    font = place.font
    x = PAD
    y += 0.6 * font
    for kind in kinds_of(film):
        text = LEGEND.get(kind, kind)
        room = LETTER * font * len(text) + 2.6 * font
        if x > PAD and x + room > width:
            x = PAD
            y += 1.6 * font
        look = kind.replace(" ", "-")
        shapes.append(rectangle(x, y - 0.85 * font, 1.4 * font, font, look))
        shapes.append(words(x + 1.7 * font, y, text, "quiet"))
        x += room
    return shapes, y + 0.5 * font


def paragraphs(film, y, width, font):
    """-> the sentences and what was run, in lines that fit, and where they end."""
    shapes = []
    letters = int((width - 2 * PAD) / (0.95 * LETTER * font))
    y += 0.9 * font
    for text in (*film.sentences, *film.about):
        look = "quiet" if text in film.about else ""
        for line in textwrap.wrap(quoted(text), letters):
            y += 1.3 * font
            shapes.append(words(PAD, y, line, look))
        y += 0.4 * font
    return shapes, y

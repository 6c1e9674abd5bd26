"""The icons of the theme as a few shapes in its style sheet, in place of two fonts of 225 KB.

The theme also brings its icons as SVG paths, in a script. If one that is used is not found in it,
nothing is changed, and the fonts show all icons as before.
"""

import re
from pathlib import Path
from urllib.parse import quote

STYLE = "_static/styles/pydata-sphinx-theme.css"
USED = re.compile(r"\bfa(?:s|b|-solid|-brands) fa-([a-z-]+)")
# bars:[448,512,["navicon"],"f0c9","M0 96C0 78.3 ..."]
SHAPE = re.compile(
    r'(?<![\w-])"?([a-z0-9-]+)"?:\[(\d+),(\d+),\[([^\]]*)\],"[0-9a-f]+",(?:"(M[^"]+)"|\[)'
)
GLYPHS = re.compile(r'\.fa-[a-z0-9-]+(?:,\.fa-[a-z0-9-]+)*\{--fa:"[^}]*"\}')  # of the fonts
LOOK = """
:is(.fa-solid,.fas,.fa-brands,.fab){font-family:inherit} /* else the fonts are fetched after all */
:is(.fa-solid,.fas,.fa-brands,.fab)::before{content:"";display:inline-block;width:1.25em;height:1em;
background:currentColor;vertical-align:-.1em;mask:var(--shape) center/contain no-repeat}
"""


def write_icons(outdir: Path, script: str) -> None:
    """Put the shapes into the theme's style sheet. script: the theme's script with the paths."""
    used = set()
    for path in [*outdir.rglob("*.html"), *outdir.glob("_static/scripts/*.js")]:
        used |= set(USED.findall(path.read_text(encoding="utf-8")))
    shapes = shapes_in(script)
    if not used <= set(shapes):
        return
    style = outdir / STYLE
    rules = [f'.fa-{name}{{--shape:url("{shapes[name]}")}}\n' for name in sorted(used)]
    text = GLYPHS.sub("", style.read_text(encoding="utf-8"))
    style.write_text(text + LOOK + "".join(rules), encoding="utf-8")


def shapes_in(script: str) -> dict[str, str]:
    """{name or other name of an icon: its shape as an address}"""
    shapes, others = {}, {}
    for name, width, height, aliases, path in SHAPE.findall(script):
        if path:
            svg = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>"
            shapes[name] = "data:image/svg+xml," + quote(f"{svg}<path d='{path}'/></svg>", " ='/:")
            others |= dict.fromkeys(re.findall(r'"([a-z-]+)"', aliases), shapes[name])
    return others | shapes

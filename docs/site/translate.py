"""The site in Chinese: which pages are translated, and a build that shows these in Chinese.

    python docs/site/translate.py                     # how far is each catalogue?
    python docs/site/translate.py --stale             # the English messages that lack a translation
    python docs/site/translate.py --update            # merge what has changed in English
    python docs/site/translate.py --build site/html   # make site-zh: English, and Chinese in zh/

gettext translates message by message: a paragraph, a heading, a cell of a table. Code blocks,
outputs and pictures are no messages, so they are those of the English page. A page is shown in
Chinese only if none of its messages is missing or stale, otherwise in English, as a whole. To begin
with a page, name it in PAGES and run --update; a message marked "fuzzy" in a catalogue is stale.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from docutils import nodes
from sphinx.application import Sphinx
from tabulate import tabulate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CATALOGUES = HERE / "locale/zh_CN/LC_MESSAGES"
STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
PAGES = (
    "README",
    *(f"{stage}/README" for stage in STAGES),
    *("docs/README", "docs/adapt", "docs/backends", "docs/cheatsheet", "docs/checklist"),
    *("docs/checkpoints", "docs/corrections", "docs/debugging", "docs/doctor", "docs/glossary"),
    *("docs/gradient_accumulation", "docs/messages", "docs/player/index"),
    *(f"notebooks/03_{name}" for name in ("ddp_spawn", "samplers_and_seeds", "mixed_precision")),
    *("notebooks/05_ring_allreduce", "notebooks/05_multinode"),
)
UNFOLDS = re.compile(r"<summary>(.*?)</summary>(\S[^<]*)?", re.DOTALL)  # HTML in the Markdown


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stale", action="store_true", help="list what is missing or stale")
    parser.add_argument("--update", action="store_true", help="merge the English pages' changes")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build both sites there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        english = messages(Path(folder))
        if args.update:
            for page in PAGES:
                update(page, english[page])
        open_messages = {page: unfinished(page, english[page]) for page in PAGES}
        print(report(english, open_messages))
        if args.stale:
            for page, left in open_messages.items():
                print("".join(f"\n{page}: {message}" for message in left), end="")
        if args.build:
            build(args.build, [page for page in PAGES if not open_messages[page]])
    return 0


def messages(folder: Path) -> dict[str, Catalog]:
    """The messages of the English pages as they are now."""
    sphinx("gettext", folder, "-D", "gettext_location=0")
    catalogues = {}
    for page in PAGES:
        with open(folder / f"{page}.pot", "rb") as file:
            catalogues[page] = read_po(file)
        path = next(path for path in ROOT.glob(f"{page}.*") if path.suffix in (".md", ".ipynb"))
        change_html(path.read_text(encoding="utf-8"), catalogues[page].add)
    return catalogues


def setup(app: Sphinx) -> None:
    """translate.py is an extension, too."""
    app.connect("source-read", translate_html)
    app.connect("doctree-read", leave_outputs)


def translate_html(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the Chinese words where gettext does not reach: into the HTML of the translated pages."""
    if app.config.language == "zh_CN" and page in app.config.html_context["translated"].split():
        chinese = translated(page)

        def translation(english: str) -> str:
            message = chinese.get(english)
            return message.string if message and message.string else english

        source[0] = change_html(source[0], translation)


def change_html(text: str, change: Callable[[str], object]) -> str:
    """The text, with change() applied to what unfolds in it: questions and answers.

    text is Markdown, or a notebook's JSON.
    """

    def changed(found: re.Match) -> str:
        name, rest = (change(" ".join(words.split())) if words else "" for words in found.groups())
        return f"<summary>{name}</summary>{rest}"

    if not text.startswith("{"):
        return UNFOLDS.sub(changed, text)
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = UNFOLDS.sub(changed, "".join(cell["source"]))
    return json.dumps(notebook)


def leave_outputs(app: Sphinx, doctree: nodes.document) -> None:
    """What a notebook's cells have printed is no message: it changes with every run."""
    for box in doctree.findall(nodes.container):
        if "cell_output" in box["classes"]:
            for text in box.findall(nodes.TextElement):
                text["translatable"] = False


def sphinx(builder: str, folder: Path, *flags: str) -> None:
    """Run sphinx-build as `make site` does; ends the program if there is a warning."""
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-E", "-a"]
    command += ["-D", "extensions=myst_nb,sphinx_copybutton,hooks,translate"]  # setup(), above
    with tempfile.TemporaryDirectory() as doctrees:
        command += ["-b", builder, "-d", doctrees, "-c", str(HERE), *flags, str(ROOT), str(folder)]
        code = subprocess.run(command).returncode
    if code:
        sys.exit(code)


def update(page: str, english: Catalog) -> None:
    """Bring a catalogue up to date: new messages are empty, changed ones are marked fuzzy."""
    catalogue = translated(page) if path_of(page).exists() else Catalog(locale="zh_CN")
    catalogue.update(english, update_header_comment=False)
    catalogue.obsolete.clear()
    path_of(page).parent.mkdir(parents=True, exist_ok=True)
    with open(path_of(page), "wb") as file:
        write_po(file, catalogue, width=100, omit_header=True, include_previous=True)


def translated(page: str) -> Catalog:
    with open(path_of(page), "rb") as file:
        return read_po(file, locale="zh_CN")


def path_of(page: str) -> Path:
    return CATALOGUES / f"{page}.po"


def unfinished(page: str, english: Catalog) -> list[str]:
    """The messages of an English page that have no translation, or a stale one."""
    chinese = translated(page) if path_of(page).exists() else Catalog()
    found = []
    for message in english:
        own = chinese.get(message.id)
        if message.id and (own is None or not own.string or own.fuzzy):
            found.append(message.id)
    return found


def report(english: dict[str, Catalog], open_messages: dict[str, list[str]]) -> str:
    rows = [
        [page, len(english[page]), len(left), "English" if left else "Chinese"]
        for page, left in open_messages.items()
    ]
    return tabulate(rows, ["page", "messages", "missing or stale", "shown in"], "simple")


def build(folder: Path, pages: list[str]) -> None:
    """Build the English site, and in zh/ one in which these pages are in Chinese, with links."""
    linked = ("-A", f"translated={' '.join(pages)}")  # for templates/language.html
    sphinx("html", folder, *linked)
    with tempfile.TemporaryDirectory() as locale:
        for page in pages:
            path = Path(locale, f"zh_CN/LC_MESSAGES/{page}.mo")
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                write_mo(file, translated(page))
        settings = ("language=zh_CN", f"locale_dirs={locale}", "html_title=PyTorch 数据并行训练")
        defines = [part for setting in settings for part in ("-D", setting)]
        sphinx("html", folder / "zh", *linked, *defines)


if __name__ == "__main__":
    sys.exit(main())

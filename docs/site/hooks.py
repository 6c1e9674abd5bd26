"""What Sphinx lacks here: pages of scripts and folders, toctrees outside the pages, a foot line."""

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLAYER = ROOT / "docs/player"
NAVIGATION = yaml.safe_load((HERE / "navigation.yml").read_text(encoding="utf-8"))
# Folders that pages link to and that have no README.md: the site lists their files.
FOLDERS = ("benchmarks/results", "docs/timings", "exercises/checks", "exercises/solutions")


def setup(app: Sphinx) -> dict:
    app.add_source_parser(ScriptParser)
    app.connect("source-read", add_toctrees)
    app.connect("doctree-read", link_to_folders)
    app.connect("doctree-read", describe_pictures)
    app.connect("html-collect-pages", folder_pages)
    app.connect("html-page-context", add_foot_line)
    app.connect("build-finished", add_plain_files)
    app.connect("build-finished", add_player)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# ---------------------------------------------------------------- scripts and folders


class ScriptParser(Parser):
    """Makes a page of a script: its path is the title, its text one highlighted block.

    So a link to train.py leads to code that can be read. The search knows a script by its path
    only: else each word would lead to a hundred scripts before it leads to a page.
    """

    supported = ("script",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        path = env.doc2path(env.docname, base=False)
        language = {".py": "python", ".yaml": "yaml", ".diff": "diff"}.get(path.suffix, "bash")
        section = nodes.section(ids=[nodes.make_id(str(path))])
        section += nodes.title(text=str(path), translatable=False)
        section += nodes.literal_block(inputstring, inputstring, language=language)
        document += section
        env.metadata[env.docname].update(orphan="", nosearch="")


def link_to_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Turn Markdown links to one of FOLDERS into links to its list of files."""
    page = app.env.docname
    for link in list(doctree.findall(addnodes.pending_xref)):
        target = (ROOT / page).parent / link["reftarget"]
        for folder in FOLDERS:
            if target.resolve() == ROOT / folder:
                uri = app.builder.get_relative_uri(page, f"{folder}/index")
                link.replace_self(nodes.reference("", "", *link.children, refuri=uri))


def folder_pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """The lists of files: scripts have a page, all else is copied (add_plain_files)."""
    for folder in FOLDERS:
        items = []
        for name in files_in(folder):
            docname = app.env.path2doc(ROOT / folder / name)
            uri = f"{Path(name).stem}.html" if docname in app.env.found_docs else name
            items.append(f'<li><a href="{html.escape(uri)}">{html.escape(name)}</a></li>')
        body = f"<h1>{folder}</h1>\n<ul>\n{''.join(items)}\n</ul>"
        yield f"{folder}/index", {"title": folder, "body": body}, "page.html"


def files_in(folder: str) -> list[str]:
    files = [path for path in (ROOT / folder).rglob("*.*") if "__" not in str(path)]
    return sorted(path.relative_to(ROOT / folder).as_posix() for path in files if path.is_file())


def add_plain_files(app: Sphinx, error: Exception | None) -> None:
    """Copy what the lists of files lead to, and make the README what a visitor sees first."""
    if error or app.builder.name != "html":
        return
    for folder in FOLDERS:
        for name in files_in(folder):
            if Path(name).suffix in (".json", ".png"):
                copy = app.outdir / folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / folder / name, copy)
    shutil.copy(app.outdir / f"{app.config.root_doc}.html", app.outdir / "index.html")


def add_player(app: Sphinx, error: Exception | None) -> None:
    """Put the player where the pages expect it."""
    if not error and app.builder.name == "html":
        write_player(app.outdir / "_static/player")


def write_player(folder: Path) -> None:
    """Write player.js, joined, its style, and the recordings as a script: without a server a page
    can load neither modules nor JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [PLAYER / f"{name}.js" for name in ("words", "lanes", "circle", "player")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in parts)
    (folder / "player.js").write_text(f'"use strict";\n(() => {{\n{code}}})();\n', "utf-8")
    shutil.copy(PLAYER / "player.css", folder)
    paths = sorted((PLAYER / "recordings").glob("*.json"))
    recordings = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    text = f"window.recordings = {json.dumps(recordings, separators=(',', ':'))};\n"
    (folder / "recordings.js").write_text(text, encoding="utf-8")


# ---------------------------------------------------------------- notebooks


def describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give each picture that a cell shows its text alternative, which MyST-NB leaves out.

    notebooks/lesson/drawing.py stores it. MyST-NB names a picture's file by the hash of its bytes.
    """
    path = app.env.doc2path(app.env.docname)
    if path.suffix != ".ipynb":
        return
    words = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt")
            if alt:
                png = base64.b64decode("".join(output["data"]["image/png"]))
                words[hashlib.sha256(png).hexdigest()] = alt
    for image in doctree.findall(nodes.image):
        if Path(image["uri"]).stem in words:
            image["alt"] = words[Path(image["uri"]).stem]


# ---------------------------------------------------------------- navigation


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append a page's part of navigation.yml, as hidden toctrees: GitHub's readers see none."""
    for caption, pages in NAVIGATION.get(docname, {}).items():
        entries = "\n".join(f"{name} </{page}>" for name, page in pages.items())
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


# ---------------------------------------------------------------- the foot line


def add_foot_line(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Give the template tested.html PyTorch's version."""
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    context["torch_version"] = re.search(r"^torch==(.+)$", requirements, re.MULTILINE)[1]

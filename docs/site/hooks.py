"""What Sphinx lacks here: pages of scripts and folders, toctrees outside the pages, a search."""

import base64
import hashlib
import html
import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser
from sphinx.search.en import SearchEnglish

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLAYER = ROOT / "docs/player"
NAVIGATION = yaml.safe_load((HERE / "navigation.yml").read_text(encoding="utf-8"))
# Folders that pages link to and that have no README.md: the site lists their files.
FOLDERS = {  # folder: what is in it, the page about it
    "benchmarks/results": ("What was measured.", "benchmarks/README"),
    "docs/timings": (
        "A record is the JSON file of one run of a stage: its settings and, for each epoch, the"
        " loss, the accuracy and the seconds of each phase on each rank. Its name has the stage,"
        " each setting that is not the default, and the devices.",
        "docs/reading_timings",
    ),
    "exercises/checks": ("What check.py looks at, exercise by exercise.", "exercises/README"),
    "exercises/solutions": ("One way to solve each exercise.", "exercises/README"),
}


def setup(app: Sphinx) -> dict:
    app.add_source_parser(ScriptParser)
    app.add_search_language(EnglishWords)
    app.add_search_language(ChineseWords)
    app.connect("builder-inited", name_pages)
    app.connect("source-read", add_toctrees)
    app.connect("doctree-read", link_to_folders)
    app.connect("doctree-read", describe_pictures)
    app.connect("html-collect-pages", folder_pages)
    app.connect("html-page-context", complete_page)
    app.connect("build-finished", add_plain_files)
    app.connect("build-finished", add_player)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def name_pages(app: Sphinx) -> None:
    """README.md is what a visitor sees first: its page is index.html. The Chinese site, in zh/, has
    no listings: its links lead to those of the English one."""
    builder, root = app.builder, app.config.root_doc
    if builder.name != "html":
        return
    target, path, write = builder.get_target_uri, builder.get_output_path, builder.write_doc
    apart = app.config.language == "zh_CN"

    def own_target(page: str, typ: str | None = None) -> str:
        up = "../" if apart and is_listing(app, page) else ""
        return up + target("index" if page == root else page, typ)

    def own_write(page: str, doctree: nodes.document) -> None:
        if not (apart and is_listing(app, page)):
            write(page, doctree)

    builder.get_target_uri, builder.write_doc = own_target, own_write
    builder.get_output_path = lambda page: path("index" if page == root else page)


def is_listing(app: Sphinx, page: str) -> bool:
    """Is it the page of a script, or the list of a folder's files?"""
    if page in app.env.found_docs:
        return app.env.doc2path(page).suffix not in (".md", ".ipynb")
    return page.removesuffix("/index") in FOLDERS


# ---------------------------------------------------------------- scripts and folders


class ScriptParser(Parser):
    """Makes a page of a script: its path is the title, then what it is a part of, then the listing.

    So a link to train.py leads to code that can be read, and one to train.html#L-12 to its line 12.
    The search knows a script by its path only: else each word would lead to a hundred scripts
    before it leads to a page.
    """

    supported = ("script",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        path = env.doc2path(env.docname, base=False)
        language = {".py": "python", ".yaml": "yaml", ".diff": "diff"}.get(path.suffix, "bash")
        section = nodes.section(ids=[nodes.make_id(str(path))])
        section += nodes.title(text=str(path), translatable=False)
        words = "属于：" if env.config.language == "zh_CN" else "Part of "
        target = {"refdomain": "std", "reftype": "doc", "reftarget": f"/{home_of(path)}"}
        link = addnodes.pending_xref("", nodes.inline(), refexplicit=False, refwarn=True, **target)
        section += nodes.paragraph("", "", nodes.Text(words), link, translatable=False)
        anchors = {"lineanchors": "L", "anchorlinenos": True}
        code = {"language": language, "linenos": True, "highlight_args": anchors}
        section += nodes.literal_block(inputstring, inputstring, **code)
        document += section
        env.metadata[env.docname].update(orphan="", nosearch="")


def home_of(script: Path) -> str:
    """The page that a script belongs to: of an example the one that names it, else a README."""
    if script.parent.as_posix() == "docs/examples":
        for page in sorted(ROOT.glob("docs/*.md")):
            if f"examples/{script.name}" in page.read_text(encoding="utf-8"):
                return f"docs/{page.stem}"
    folder = next(folder for folder in script.parents if (ROOT / folder / "README.md").exists())
    return (folder / "README").as_posix()


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
    for folder in FOLDERS if app.config.language == "en" else ():
        sentence, about = FOLDERS[folder]
        uri = app.builder.get_relative_uri(f"{folder}/index", about)
        body = f"<h1>{folder}</h1>\n<p>{sentence} Explained in {link(uri, f'{about}.md')}.</p>\n"
        items = []
        for name in files_in(folder):
            docname = app.env.path2doc(ROOT / folder / name)
            uri = f"{Path(name).stem}.html" if docname in app.env.found_docs else name
            items.append(f"<li>{link(uri, name)}</li>")
        body += f"<ul>\n{''.join(items)}\n</ul>"
        yield f"{folder}/index", {"title": folder, "body": body}, "page.html"


def link(uri: str, words: str) -> str:
    return f'<a href="{html.escape(uri)}">{html.escape(words)}</a>'


def files_in(folder: str) -> list[str]:
    files = [path for path in (ROOT / folder).rglob("*.*") if "__" not in str(path)]
    return sorted(path.relative_to(ROOT / folder).as_posix() for path in files if path.is_file())


def add_plain_files(app: Sphinx, error: Exception | None) -> None:
    """Copy what the lists of files lead to, and leave out what only costs weight."""
    if error or app.builder.name != "html":
        return
    for folder in FOLDERS if app.config.language == "en" else ():
        for name in files_in(folder):
            if Path(name).suffix in (".json", ".png"):
                copy = app.outdir / folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / folder / name, copy)
    # The theme's icons are in a font; the same icons as a script are 1.5 MB on each page.
    (app.outdir / "_static/scripts/fontawesome.js").write_text("")
    for path in [*app.outdir.glob("_static/*/*.map"), *app.outdir.glob("_static/*.po")]:
        path.unlink()
    once = ("_images", "_sources") if app.config.language == "zh_CN" else ()
    for folder in ("../jupyter_execute", "_static/locales", *once):
        shutil.rmtree(app.outdir / folder, ignore_errors=True)


def add_player(app: Sphinx, error: Exception | None) -> None:
    """Put the player where the pages expect it."""
    if not error and app.builder.name == "html":
        write_player(app.outdir / "_static/player")
        picture = app.outdir / "docs/player/step.png"  # of shared links, and where no script runs
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PLAYER / "step.png", picture)


def write_player(folder: Path) -> None:
    """Write player.js, joined and with its words, its style, and the recordings as a script: a page
    without a server can load neither modules nor JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    words = yaml.safe_load((PLAYER / "words.yml").read_text(encoding="utf-8"))
    parts = [PLAYER / f"{name}.js" for name in ("words", "compare", "lanes", "circle", "player")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in parts)
    code = re.sub("^export ", "", code, flags=re.MULTILINE)
    script = f'"use strict";\n{as_script(words)}(() => {{\n{code}}})();\n'
    (folder / "player.js").write_text(script, encoding="utf-8")
    shutil.copy(PLAYER / "player.css", folder)
    paths = sorted((PLAYER / "recordings").glob("*.json"))
    recordings = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    (folder / "recordings.js").write_text(as_script({"recordings": recordings}), encoding="utf-8")


def as_script(values: dict) -> str:
    lines = [
        f"window.{name} = {json.dumps(value, ensure_ascii=False, separators=(',', ':'))};\n"
        for name, value in values.items()
    ]
    return "".join(lines)


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


def without_listings(app: Sphinx, page: str, step: int) -> dict | None:
    """What Previous (1) or Next (2) leads to: the nearest page that is no listing."""
    relations = app.builder.relations
    while page := relations.get(page, [None] * 3)[step]:
        if not is_listing(app, page):
            title = app.builder.render_partial(app.env.titles[page])["title"]
            return {"title": title, "docname": page}
    return None


# ---------------------------------------------------------------- each page


def complete_page(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Give the templates PyTorch's version, a sentence for shared links, Previous and Next, and
    make the page lighter."""
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    context["torch_version"] = re.search(r"^torch==(.+)$", requirements, re.MULTILINE)[1]
    context["root_doc"] = app.config.root_doc
    texts = [one.astext() for one in doctree.findall(nodes.paragraph)] if doctree else []
    text = " ".join((texts or [app.config.project])[0].split())
    context["description"] = textwrap.shorten(text, 200, placeholder=" ...")
    for name, step in (("prev", 1), ("next", 2)):
        found = without_listings(app, page, step)
        uri = found and app.builder.get_relative_uri(page, found["docname"])
        context[name] = found and {"title": found["title"], "link": uri}
    context["body"] = lighter(context.get("body", ""), app.config.language)
    if app.config.language == "zh_CN" and context.get("sourcename"):
        context["sourcename"] = f"../../_sources/{context['sourcename']}"  # the English page's
    if page == "search":
        app.add_js_file("search.js", priority=200)
    if doctree and any('class="player"' in one.astext() for one in doctree.findall(nodes.raw)):
        app.add_js_file("player/player.js", loading_method="defer")


def lighter(body: str, language: str) -> str:
    """Listings are half of the site: without what has no colour, and with one anchor in a line.
    Chinese pages show the pictures of the English ones."""
    body = re.sub(r'<span class="(?:n|nn|o|p|w)">([^<]*)</span>', r"\1", body)
    body = re.sub(r'<a id="(L-\d+)" name="L-\d+"></a><a href', r'<a id="\1" href', body)
    images = r'((?:src|href)=")((?:\.\./)*_images/)'
    return body if language == "en" else re.sub(images, r"\1../\2", body)


# ---------------------------------------------------------------- the search


class EnglishWords(SearchEnglish):
    """Cuts pages into words as static/search.js cuts a query: "all-reduce" is "allreduce", too, and
    Chinese is cut into pairs of characters, so that no dictionary has to know a compound."""

    def split(self, input: str) -> list[str]:
        text = input.lower()
        joined = re.findall(r"[a-z0-9]+(?:[-_][a-z0-9]+)+", text)
        runs = re.findall(r"[\u4e00-\u9fff]{2,}", text)
        words = re.findall(r"[a-z0-9]+", text) + [re.sub("[-_]", "", word) for word in joined]
        return words + [run[i : i + 2] for run in runs for i in range(len(run) - 1)]


class ChineseWords(EnglishWords):
    lang = "zh"

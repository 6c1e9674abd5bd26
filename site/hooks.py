"""What Sphinx lacks here: pages of scripts, toctrees outside the pages, messages, the search."""

import base64
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import yaml
from cells import CellLexer, colour_magic_cells, fold_guesses
from docutils import nodes
from exercise_pages import above, neighbours_of, title_of
from languages import speak_chinese
from marks import for_the_search, marked
from reading_path import is_chinese, names_of, neighbours
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser
from stamps import STAMP, blob

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAVIGATION = yaml.safe_load((HERE / "navigation.yml").read_text(encoding="utf-8"))
NAMES = names_of(NAVIGATION)
STAGES = [page.removesuffix("/README") for page in NAVIGATION["README"]["Stages"].values()][:5]
WORDS = {  # what the templates say: [English, Chinese]
    "previous": ["Previous", "上一页"],
    "next": ["Next", "下一页"],
    "tested": [
        "This repository is tested with PyTorch VERSION on Linux. MIT License.",
        "本仓库在 Linux 上用 PyTorch VERSION 测试。MIT 许可证。",
    ],
    "pages": ["Pages", "页面"],
    "committed": ["Last commit: DATE.", "最近一次提交：DATE。"],
}
NO_SCRIPT_PAGES = (  # what leads on where no script opens the column of pages: English, Chinese
    {
        "Start page": "README",
        "Index": "docs/README",
        **{f"Stage {number}": f"{stage}/README" for number, stage in enumerate(STAGES, 1)},
    },
    {
        "首页": "README.zh",
        "全部页面（英文）": "docs/README",
        **{f"阶段 {number}": f"{stage}/README.zh" for number, stage in enumerate(STAGES, 1)},
    },
)


def setup(app: Sphinx) -> dict:
    app.add_source_parser(ScriptParser)
    app.add_lexer(CellLexer.name, CellLexer)
    app.connect("builder-inited", name_pages)
    app.connect("source-read", fold_guesses)
    app.connect("source-read", add_toctrees)
    app.connect("source-read", show_messages)
    app.connect("source-read", tell_of_changes)
    app.connect("doctree-read", link_to_folders)
    app.connect("doctree-read", describe_pictures)
    app.connect("doctree-read", colour_magic_cells)
    app.connect("html-page-context", complete_page)
    app.connect("html-page-context", speak_chinese, priority=900)
    app.connect("build-finished", add_files)
    app.connect("build-finished", put_start_page_into_sitemap, priority=900)  # after it is written
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def name_pages(app: Sphinx) -> None:
    """README.md is what a visitor sees first, so its page is index.html."""
    builder = app.builder
    builder.search = False  # no index of Sphinx's own
    root = app.config.root_doc
    if builder.name == "html":
        target = builder.get_target_uri
        path = builder.get_output_path
        builder.get_target_uri = lambda page, typ=None: target("index" if page == root else page)
        builder.get_output_path = lambda page: path("index" if page == root else page)


# ---------------------------------------------------------------- scripts and folders


class ScriptParser(Parser):
    """Makes a page of a script: its path is the title, then what it is a part of, then the listing.

    So a link to train.py leads to code that can be read, and one to train.html#L-12 to its line 12.
    Scripts are left out of the search: else each word would lead to a hundred scripts before it
    leads to a page.
    """

    supported = ("script",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        path = env.doc2path(env.docname, base=False)
        language = {".py": "python", ".yaml": "yaml"}.get(path.suffix, "bash")
        section = nodes.section(ids=[nodes.make_id(str(path))])
        title = title_of(env.docname)
        section += nodes.title(text=title or str(path))
        if title:
            section += above(env.docname)
        else:
            target = {"refdomain": "std", "reftype": "doc", "reftarget": f"/{home_of(path)}"}
            how = {"refexplicit": False, "refwarn": True}
            link = addnodes.pending_xref("", nodes.inline(), **how, **target)
            section += nodes.paragraph("", "", nodes.Text("Part of "), link)
        anchors = {"lineanchors": "L", "anchorlinenos": True}
        code = {"language": language, "linenos": True, "highlight_args": anchors}
        section += nodes.literal_block(inputstring, inputstring, **code)
        document += section
        env.metadata[env.docname].update(orphan="", script="")


def home_of(script: Path) -> str:
    """The page that a script belongs to: of an example the one that names it, else a README."""
    if script.parent.name == "examples":
        for page in sorted((ROOT / script.parent.parent).glob("*.md")):
            if f"examples/{script.name}" in page.read_text(encoding="utf-8"):
                return (script.parent.parent / page.stem).as_posix()
    folder = next(folder for folder in script.parents if (ROOT / folder / "README.md").exists())
    return (folder / "README").as_posix()


def link_to_folders(app: Sphinx, doctree: nodes.document) -> None:
    """A link to a folder or a test leads to the repository. Without its address the words stay."""
    repository = app.config.html_theme_options["repository_url"]
    for link in list(doctree.findall(addnodes.pending_xref)):
        base = ROOT if link.get("refdomain") == "doc" else (ROOT / app.env.docname).parent
        target = (base / link["reftarget"]).resolve()
        if target.is_relative_to(ROOT / "tests"):
            target = target.with_suffix(".py")  # MyST takes the ending off
        elif not (target.is_dir() and target.is_relative_to(ROOT)):
            continue
        uri = f"{repository}/blob/main/{target.relative_to(ROOT)}"
        words = nodes.reference("", "", *link.children, refuri=uri)
        link.replace_self(words if repository else link.children)


def put_start_page_into_sitemap(app: Sphinx, error: Exception | None) -> None:
    """The page of README.md is written as index.html."""
    sitemap = app.outdir / "sitemap.xml"
    if error or not sitemap.exists():
        return
    base = app.config.html_baseurl.rstrip("/")
    text = sitemap.read_text(encoding="utf-8")
    text = text.replace(f"<loc>{base}/README.html</loc>", f"<loc>{base}/</loc>")
    sitemap.write_text(text, encoding="utf-8")


def add_files(app: Sphinx, error: Exception | None) -> None:
    """Add robots.txt and the picture of shared links, and leave out what costs weight."""
    if error or app.builder.name != "html":
        return
    if app.config.html_baseurl:
        sitemap = f"{app.config.html_baseurl.rstrip('/')}/sitemap.xml"
        robots = f"User-agent: *\nAllow: /\nSitemap: {sitemap}\n"
        (app.outdir / "robots.txt").write_text(robots, encoding="utf-8")
    # The theme brings its icons as fonts, and again as a script of 1.5 MB.
    (app.outdir / "_static/scripts/fontawesome.js").write_text("")
    # Without JavaScript nobody finds out what the reader's system likes: such a page is light.
    for path in app.outdir.rglob("*.html"):
        html = path.read_bytes()
        path.write_bytes(html.replace(b'data-theme="auto"', b'data-theme="light"', 1))
    for path in [*app.outdir.glob("_static/*/*.map"), *app.outdir.glob("_static/*.po")]:
        path.unlink()
    for folder in ("../jupyter_execute", "_static/locales"):
        shutil.rmtree(app.outdir / folder, ignore_errors=True)


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
            for kind, described in output.get("metadata", {}).items():
                if kind not in ("image/png", "image/svg+xml") or not described.get("alt"):
                    continue
                text = "".join(output["data"][kind])
                if kind == "image/png":
                    picture = base64.b64decode(text)
                else:
                    picture = os.linesep.join(text.splitlines()).encode()  # as MyST-NB writes it
                words[hashlib.sha256(picture).hexdigest()] = described["alt"]
    for image in doctree.findall(nodes.image):
        if Path(image["uri"]).stem in words:
            image["alt"] = words[Path(image["uri"]).stem]


# ---------------------------------------------------------------- navigation


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append a page's part of navigation.yml, as hidden toctrees: GitHub's readers see none."""
    for caption, pages in NAVIGATION.get(docname, {}).items():
        entries = "\n".join(f"{name} </{page}>" for name, page in pages.items())
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def show_messages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Blocks of messages are plain text, without what only tools/messages_table.py reads."""
    if docname.startswith("docs/failures/messages/"):
        source[0] = re.sub(r"^```messages .*$", "```output", source[0], flags=re.MULTILINE)
        source[0] = re.sub(CONDITIONS, "", source[0], flags=re.MULTILINE)
        source[0] = re.sub(ABOUT_CONDITIONS, "", source[0], flags=re.MULTILINE)


CONDITIONS = r"^(?:with|without|where|ranks): .*\n"
ABOUT_CONDITIONS = r"^- .*`with:`.*\n"  # what a page says of them


# ---------------------------------------------------------------- each page


def tell_of_changes(app: Sphinx, page: str, content: list[str]) -> None:
    """A Chinese page names the blob of the English page that it follows. Say if it is another."""
    stamp = STAMP.match(content[0])
    if not page.endswith(".zh") or not stamp:
        return
    english = (ROOT / f"{page.removesuffix('.zh')}.md").read_bytes()
    text = content[0].removeprefix(stamp[0])
    first, rest = text.split("\n", 1)
    if blob(english) != stamp[2]:
        first += "（英文版此后有改动）"
    content[0] = f"{first}\n{rest}"


def complete_page(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Give the templates what they show on each page, and each page the scripts that it needs."""
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    context["torch_version"] = re.search(r"^torch==(.+)$", requirements, re.MULTILINE)[1]
    context["committed"] = committed()
    context["root_doc"] = app.config.root_doc
    context["metatags"] = ""  # a second viewport
    if page == app.config.root_doc and context.get("pageurl"):
        context["pageurl"] = context["pageurl"].removesuffix("index.html")
    if is_chinese(page):
        context["language"] = "zh-CN"
    context["words"] = {key: both[is_chinese(page)] for key, both in WORDS.items()}
    context["no_script_pages"] = NO_SCRIPT_PAGES[is_chinese(page)].items()
    if page == "404":
        context["title"] = "There is no such page"
    is_code = page in scripts_of(app) and "highlight-diff" not in context["body"]
    if "body" in context and not is_code:
        context["body"] = marked(context["body"])
    if page in app.env.found_docs - scripts_of(app):
        context["body"] = for_the_search(context["body"])
    set_neighbours(app, page, context)
    texts = [one.astext() for one in doctree.findall(nodes.paragraph)] if doctree else []
    long = [text for text in texts if len(text) > 60]  # the first may be a link to a language
    text = " ".join((long or [app.config.project])[0].split())
    context["description"] = textwrap.shorten(text, 200, placeholder=" ...")
    if page.startswith("notebooks/"):
        app.add_js_file("guess_number.js", loading_method="defer")


def scripts_of(app: Sphinx) -> set[str]:
    """The pages that are listings."""
    return {page for page, meta in app.env.metadata.items() if "script" in meta}


def set_neighbours(app: Sphinx, page: str, context: dict) -> None:
    """Where Previous and Next lead, with the short names of navigation.yml."""
    both = neighbours(page, app.builder.relations, scripts_of(app))
    if title_of(page):  # an exercise or a solution
        both = neighbours_of(page)
    for place, other in zip(("prev", "next"), both):
        context[place] = None
        if other is not None:
            title = NAMES.get(other) or app.env.titles[other].astext()
            link = app.builder.get_relative_uri(page, other)
            context[place] = {"title": title, "link": link}


@functools.cache
def committed() -> str:
    """The date of the commit that is built, or nothing outside of a repository."""
    command = ["git", "log", "-1", "--format=%cs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()

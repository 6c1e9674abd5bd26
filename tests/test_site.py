"""The site that make site builds: no warning, no dead link, no other host; search; widgets."""

import functools
import importlib
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from browser import NEEDS_BROWSER, served
from conftest import ROOT, files
from filelock import FileLock

pytestmark = pytest.mark.slow

WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
Keys = importlib.import_module("selenium.webdriver.common.keys").Keys
errors = importlib.import_module("selenium.common.exceptions")
pytest.importorskip("sphinx_book_theme", reason="requirements/dev.txt has it for Python 3.11 on")
pytest.importorskip("pagefind", reason="requirements/dev.txt has it")
SEARCHES = yaml.safe_load((ROOT / "tests/searches.yml").read_text(encoding="utf-8"))
# Of how many searches the page is first, and among the first three: of 30 Chinese words, of 43
# error lines, and of 48 questions. A changed page may cost some.
LEAST = {"chinese": (24, 27), "messages": (37, 39), "questions": (28, 37)}


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built by the commands of make's own target, once for all tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    printed = shared / "site.txt"
    recipe = re.search(r"^site:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)[1]
    commands = [line for line in recipe.splitlines() if "echo" not in line]
    programs = shlex.quote(str(Path(sys.executable).parent))
    script = "\n".join(["set -e", *commands]).replace("$(BIN)", programs)
    script = script.replace("_site", f"{shared}/_site")
    with FileLock(shared / "site.lock", timeout=580):
        if not printed.exists():
            how = {"cwd": ROOT, "env": os.environ | {"REPOSITORY_URL": ""}, "timeout": 550}
            result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, **how)
            printed.write_text(f"{result.returncode}\n{result.stdout}{result.stderr}")
    assert printed.read_text() == "0\n", "a warning"
    return shared / "_site"


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a page refers to, and what its readers and their tools meet."""

    def __init__(self, path):
        super().__init__()
        self.path, self.ids, self.links, self.parts = path, set(), [], []
        self.alts, self.headings, self.language = [], [], None
        self.in_article = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        self.ids |= {has.get("id"), has.get("name")} - {None}
        if tag == "html":
            self.language = has.get("lang")
        if tag == "article":
            self.in_article = True
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        self.parts += [has[name] for name in ("src", "data", "poster", "srcset") if has.get(name)]
        if tag == "link":
            self.parts.append(has["href"])
        if tag == "img":
            self.alts.append(has.get("alt"))
        if re.fullmatch("h[1-6]", tag) and self.in_article:  # elsewhere: what only printers show
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        if tag == "article":
            self.in_article = False


@functools.cache
def pages_in(folder):
    """{path without ending: Page} of all pages of the site"""
    found = []
    for path in sorted(folder.rglob("*.html")):
        if not {"_static", "pagefind"} & set(path.relative_to(folder).parts):
            found.append(path)
    return {path.relative_to(folder).as_posix()[:-5]: Page(path) for path in found}


# ---------------------------------------------------------------- the files


def test_each_page_and_notebook_is_there(site):
    sources = [path.relative_to(ROOT) for path in files(".md") + files(".ipynb")]
    names = [source.with_suffix("") for source in sources if "source" not in source.parts]
    names = [name for name in names if name.name != "hints"]  # of an exercise: a folded text
    names = [name.as_posix() for name in names if name.parts[0] != "tests"]
    names[names.index("README")] = "index"
    assert set(names) <= set(pages_in(site)) and "05_multinode/launch/kubernetes" in pages_in(site)
    assert not (site / "README.html").exists(), "the same page twice"


def test_each_link_leads_to_a_page_and_a_place_on_it(site):
    pages, dead = pages_in(site), []
    for name, page in pages.items():
        for link in page.links + page.parts:
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            path, fragment = unquote(urlsplit(link).path), unquote(urlsplit(link).fragment)
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.is_file():
                dead.append(f"{name}: {link}")
            elif fragment and target.suffix == ".html":
                to = pages[target.relative_to(site.resolve()).as_posix()[:-5]]
                dead += [] if fragment in to.ids else [f"{name}: {link}"]
    assert not dead


def test_no_page_fetches_from_another_host(site):
    for name, page in pages_in(site).items():
        assert not [part for part in page.parts if urlsplit(part).netloc], name


def test_a_listing_names_its_page_and_its_lines(site):
    page = pages_in(site)["docs/your_script/examples/adapt_after"]
    assert re.search(r'<p>Part of <a class="[^"]*" href="../adapt.html">', page.path.read_text())
    lines = len(read("docs/your_script/examples/adapt_after.py").splitlines())
    assert f"L-{lines}" in page.ids and f"L-{lines + 1}" not in page.ids


def test_a_shared_link_has_a_title_and_a_sentence(site):
    for name in ("index", "docs/failures/messages/launch", "notebooks/03_ddp_spawn"):
        html = pages_in(site)[name].path.read_text()
        has = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', html))
        assert has["title"] and 60 < len(has["description"]) <= 210, has


def test_what_each_page_has(site):
    """A language, headings in order, pictures with words, the version that was tested."""
    torch = re.search(r"^torch==(.+)$", read("requirements.txt"), re.MULTILINE)[1]
    for name, page in pages_in(site).items():
        html = page.path.read_text()
        assert page.language == ("zh-CN" if name.endswith(".zh") else "en"), name
        assert "<p>|" not in html, f"{name}: a table that is none"
        assert all(re.search(" |[\u4e00-\u9fff]", alt or "") for alt in page.alts), name
        steps = [after - before for before, after in zip(page.headings, page.headings[1:])]
        assert page.headings[:1] == [1] and page.headings.count(1) == 1, (name, page.headings)
        assert max(steps, default=0) <= 1, (name, page.headings)
        assert f"PyTorch {torch}" in html, name


def test_previous_and_next_lead_along_the_path(site):
    """From the start page to the last one, and nowhere past a listing or to another language."""
    pages = pages_in(site)

    def next_of(name):
        link = re.search(r'<a class="right-next" href="([^"]+)"', pages[name].path.read_text())
        if link is None:
            return None
        target = (pages[name].path.parent / link[1]).resolve()
        return target.relative_to(site.resolve()).as_posix()[:-5]

    for start, ending in (("index", ""), ("README.zh", ".zh")):
        way = [start]
        while next_of(way[-1]):
            way.append(next_of(way[-1]))
            assert len(way) < 200, "a circle"
        assert not [name for name in way if (ROOT / f"{name}.py").exists()]
        assert all(name.endswith(".zh") == (ending == ".zh") for name in way)
        stages = [name for name in way if re.fullmatch(r"0\d_\w+/README(\.zh)?", name)]
        assert len(stages) == 5 and stages == sorted(stages)


def test_code_around_a_guess_is_folded(site):
    """The code that computes the answer does not stand above the field."""
    html = (site / "notebooks/01_data_loading.html").read_text()
    above = html[html.index("Which number do you expect") : html.index("<summary>Answer")]
    guess = above.index("lesson.guessed") if "lesson.guessed" in above else above.index("guessed")
    assert "<details" in above[:guess].rpartition("</details>")[2]


def test_the_column_of_a_chinese_page_begins_with_chinese_pages(site):
    html = (site / "docs/reference/glossary.zh.html").read_text()
    captions = re.findall('caption-text">([^<]+)', html)
    assert captions[0] == "中文" and len(captions) > 5
    assert "Toggle" not in html and "目录" in html and "Contents" not in html


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:
        yield address


def look_at(chromium, address, width=1280, theme="light"):
    media = [{"name": "prefers-color-scheme", "value": theme}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chromium.get(address)


SEEN = ("WARNING", "SEVERE")  # on the console: without the browser's own hints
# The code that is cut off, the width of the page, and what was fetched. No table is wider than its
# box, but a phone may scroll a table of figures.
LOOK = """const [width] = arguments;
    const article = document.querySelector(".bd-article-container");
    const cut = [...article.querySelectorAll(".bd-article pre")]
        .filter((pre) => width > 500 && pre.scrollWidth > pre.clientWidth);
    const tables = [...article.querySelectorAll("table:not(.highlighttable)")].filter((table) => {
        const box = table.parentElement;
        const scrolls = getComputedStyle(box).overflowX === "auto";
        const may = width < 500 && scrolls && !table.querySelector("td.text");
        return table.scrollWidth > box.clientWidth + 1 && !may;
    });
    return [[...cut, ...tables].map((one) => one.textContent.trim().slice(0, 40)),
            document.documentElement.scrollWidth,
            performance.getEntriesByType("resource").map((entry) => entry.name)]"""


def complaints(chromium, address, name):
    """What is wrong with a page on a laptop and on a phone."""
    wrong = []
    for width, theme in ((1280, "light"), (390, "dark")):
        look_at(chromium, f"{address}/{name}.html", width, theme)
        wide, page, fetched = chromium.execute_script(LOOK, width)
        log = chromium.get_log("browser")
        found = {
            "is cut off": wide,
            "is wider than the screen": page > width,
            "fetches from elsewhere": [one for one in fetched if not one.startswith(address)],
            "writes to the console": [one["message"] for one in log if one["level"] in SEEN],
        }
        wrong += [f"{name} {width} {theme} {what}: {why}" for what, why in found.items() if why]
    return wrong


@NEEDS_BROWSER
@pytest.mark.timeout(900)
def test_all_pages_in_the_browser(chromium, address, site):
    scripts = {path.relative_to(ROOT).with_suffix("").as_posix() for path in files(".py")}
    names = set(pages_in(site)) - scripts
    assert len(names) > 40
    assert not [line for name in sorted(names) for line in complaints(chromium, address, name)]


# The addresses of the pages that the search lists first.
FIND = """const [words, done] = arguments;
    import("/_static/search/pagefind.js").then(async ({ createInstance }) => {
        window.pagefind ??= createInstance({});
        const { results } = await window.pagefind.search(words);
        const pages = await Promise.all(results.slice(0, 3).map((one) => one.data()));
        done(pages.map((page) => page.url));
    });"""


def found_by(chromium, words):
    """The first three pages, without their ending."""
    paths = []
    for url in chromium.execute_async_script(FIND, str(words)):
        path = url.partition("#")[0].strip("/").removesuffix(".html")
        paths.append(path or "README")
    return paths


@NEEDS_BROWSER
@pytest.mark.parametrize("kind", SEARCHES)
def test_the_search_finds_the_page(chromium, address, kind):
    chromium.get(f"{address}/{'README.zh' if kind == 'chinese' else 'index'}.html")
    first, among_three, missed = 0, 0, []
    for words, pages in SEARCHES[kind].items():
        found = found_by(chromium, words)
        first += found[:1] != [] and found[0] in pages.split()
        among_three += bool(set(found) & set(pages.split()))
        if not set(found) & set(pages.split()):
            missed.append((words, found))
    least_first, least_three = LEAST[kind]
    assert first >= least_first and among_three >= least_three, (first, among_three, missed)


@NEEDS_BROWSER
def test_exercises_and_solutions_are_not_in_the_search(chromium, address):
    chromium.get(f"{address}/index.html")
    for words in ("Solution of exercise 15", "15_no_sync_off_by_one"):
        for path in found_by(chromium, words):
            assert not re.match("exercises/(fix|chain|write|solutions|checks)/", path), path


GPUS = "more-ranks-than-visible-gpus"


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("page", "width", "words", "first", "section"),
    [
        ("docs/training/amp", 1280, "CUDA error: invalid device ordinal", "devices", GPUS),
        ("README.zh", 390, "端口被占用", "hangs.zh", ""),
    ],
)
def test_the_dialog_of_the_search_leads_to_a_section(
    chromium, address, page, width, words, first, section
):
    look_at(chromium, f"{address}/{page}.html", width)
    button = "pagefind-modal-trigger button"
    WebDriverWait(chromium, 30).until(lambda _: chromium.find_elements("css selector", button))
    shown = [one for one in chromium.find_elements("css selector", button) if one.is_displayed()]
    shown[0].click()
    chromium.switch_to.active_element.send_keys(words)
    links = ("css selector", "pagefind-results a")
    wanted = {f"/docs/failures/messages/{first}.html"}

    def first_results(_):
        """The results change while the words are typed."""
        with suppress(errors.StaleElementReferenceException):
            addresses = [link.get_property("href") for link in chromium.find_elements(*links)]
            found = [urlsplit(one) for one in addresses[:4]]
            return found if {one.path for one in found} == wanted else None

    found = WebDriverWait(chromium, 30).until(first_results)
    assert section in " ".join(one.fragment for one in found)


@NEEDS_BROWSER
def test_a_missing_page_below_the_top_folder_looks_like_a_page(chromium, tmp_path):
    """A site of one page, built for the address at which it is served."""
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    built.mkdir()
    (source / "README.md").write_text("# Start\n\nWords.\n")
    with served(built) as address:
        command = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT / "site", source, built]
        environment = os.environ | {"SITE_URL": f"{address}/", "REPOSITORY_URL": ""}
        subprocess.run(command, env=environment, capture_output=True, timeout=250, check=True)
        look_at(chromium, f"{address}/a/b/c.html")
        left = "return document.querySelector('.bd-article h1').getBoundingClientRect().left"
        assert chromium.execute_script(left) > 100, "no style sheet"
        start = chromium.find_element("css selector", ".bd-article a[href='index.html']")
        assert start.get_property("href") == f"{address}/index.html"


@NEEDS_BROWSER
def test_each_command_in_a_table_has_a_button_that_copies_it(chromium, address):
    chromium.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": address},
    )
    look_at(chromium, f"{address}/docs/your_script/cheatsheet.html")
    buttons = chromium.find_elements("css selector", "td .copy-command")
    buttons[0].click()
    copied = ("css selector", ".copy-command.copied")
    WebDriverWait(chromium, 20).until(lambda _: chromium.find_elements(*copied))
    read_back = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
    line = "torchrun --standalone --nproc-per-node 1 SCRIPT"
    assert len(buttons) > 12 and chromium.execute_async_script(read_back) == line


@NEEDS_BROWSER
def test_on_a_phone_a_tap_makes_a_picture_large(chromium, address):
    look_at(chromium, f"{address}/notebooks/05_ring_allreduce.html", 390)
    picture = chromium.find_element("css selector", ".picture-box img")
    width = "return arguments[0].clientWidth"
    assert chromium.execute_script(width, picture) > 600, "its letters can be read"
    chromium.execute_script("arguments[0].click()", picture)
    WebDriverWait(chromium, 5).until(lambda _: chromium.execute_script(width, picture) > 1000)
    assert chromium.execute_script("return document.documentElement.scrollWidth") == 390


@NEEDS_BROWSER
def test_a_notebook_takes_the_readers_number(chromium, address):
    look_at(chromium, f"{address}/notebooks/01_data_loading.html", 390)
    form = chromium.find_element("css selector", ".own-number")
    answer = "form.own-number + details"
    is_open = f"return document.querySelector('{answer}').open"
    number = chromium.find_element("css selector", f"{answer} strong").get_property("textContent")
    field = form.find_element("css selector", "input")
    output = form.find_element("css selector", "output")
    field.send_keys("1,9", Keys.ENTER)
    assert "number" in output.text and not chromium.execute_script(is_open)
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    field.send_keys(str(float(number.replace(",", "")) / 4), Keys.ENTER)
    assert chromium.execute_script(is_open)
    assert number in output.text and "4 times too small" in form.text
    words = "return [[9, 10], [0, 5], [-1, -1], [1.875, 1.88]].map((two) => farOff(...two))"
    assert chromium.execute_script(words) == [
        *("10 % too small", "too small by 5", "right", "right"),
    ]


@NEEDS_BROWSER
def test_answers_are_open_and_pages_light_on_paper(chromium, address):
    look_at(chromium, f"{address}/notebooks/01_data_loading.html", theme="dark")
    state = """const answer = document.querySelector("form + details");
        return [answer.open, document.documentElement.dataset.theme]"""
    for media, wanted in (("", [False, "dark"]), ("print", [True, "light"])):
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        chromium.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        WebDriverWait(chromium, 20).until(
            lambda _, wanted=wanted: chromium.execute_script(state) == wanted
        )
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@NEEDS_BROWSER
def test_without_javascript_links_lead_on(chromium, address):
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look_at(chromium, f"{address}/docs/failures/messages/launch.html", 390)
        pages = chromium.find_elements("css selector", ".no-script-pages a")
        assert len(pages) == 7 and all(page.is_displayed() for page in pages)
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

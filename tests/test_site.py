"""The site that make site builds: no warning, no dead link, no request elsewhere, and a browser."""

import functools
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from conftest import NEEDS_BROWSER, ROOT, files, served
from filelock import FileLock

pytestmark = pytest.mark.slow

pytest.importorskip("sphinx_book_theme", reason="requirements-dev.txt has it for Python 3.11 on")
SEARCHES = {  # words of a reader -> a page that has to be among the first three
    "nccl timeout": "docs/messages",
    "accuracy lower with 2 gpus": "docs/messages",
    "learning rate multiple gpus": "docs/batch_size_and_learning_rate",
    "set_epoch": "notebooks/03_samplers_and_seeds",
    "save checkpoint ddp": "docs/checkpoints",
    "SyncBatchNorm": "docs/messages",
    "torchrun slurm": "05_multinode/launch/README",
    "gradient accumulation": "docs/gradient_accumulation",
    "module. prefix": "docs/messages",
    "ring allreduce": "notebooks/05_ring_allreduce",
    "NCCL watchdog": "docs/debugging",
    "address already in use": "docs/messages",
    "exit code 1 traceback torchrun": "docs/messages",
    "ports firewall": "docs/questions",
}
VISITED = ["index", "03_ddp_spawn/README", "03_ddp_spawn/train", "notebooks/03_ddp_spawn"]
VISITED += ["docs/messages", "exercises/README"]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built by make's own command, once for all tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, printed = shared / "site/html", shared / "site.txt"
    command = re.search(r"^\t\$\(BIN\)/sphinx-build (.+)$", read("Makefile"), re.MULTILINE)[1]
    arguments = command.replace(" site/", f" {shared}/site/").split()
    with FileLock(shared / "site.lock", timeout=280):
        if not printed.exists():
            command = [sys.executable, "-m", "sphinx", *arguments]
            how = {"cwd": ROOT, "env": os.environ | {"REPOSITORY_URL": ""}, "timeout": 250}
            result = subprocess.run(command, capture_output=True, text=True, **how)
            printed.write_text(f"{result.returncode}\n{result.stdout}{result.stderr}")
    assert printed.read_text() == "0\n"
    return folder


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a page refers to, and what its readers and their tools meet."""

    def __init__(self, path):
        super().__init__()
        self.path, self.ids, self.links, self.parts = path, set(), [], []
        self.alts, self.headings, self.language, self.folded, self.text = [], [], None, 0, []
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
        if tag == "details" and "hide" in has.get("class", "") and "open" not in has:
            self.folded += 1

    def handle_endtag(self, tag):
        if tag == "article":
            self.in_article = False

    def handle_data(self, data):
        self.text.append(data)


@functools.cache
def pages_in(folder):
    """{path without ending: Page} of all pages of the site"""
    found = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    return {path.relative_to(folder).as_posix()[:-5]: Page(path) for path in found}


def outside(address):
    return bool(re.match(r"\s*(https?:)?//", address))


# ---------------------------------------------------------------- the files


def test_each_page_and_notebook_is_there(site):
    sources = [path.relative_to(ROOT) for path in files(".md") + files(".ipynb")]
    names = [source.with_suffix("") for source in sources if "source" not in source.parts]
    names = [name.as_posix() for name in names if name.parts[0] != "tests"]
    names[names.index("README")] = "index"
    assert set(names) <= set(pages_in(site)) and "05_multinode/launch/kubernetes" in pages_in(site)
    assert not (site / "README.html").exists(), "the same page twice"


def test_each_link_leads_to_a_page_and_a_place_on_it(site):
    assert not dead_links(site)


def dead_links(site):
    pages, dead = pages_in(site), []
    pairs = yaml.safe_load(read("docs/player/words.yml"))["pairs"]
    for name, page in pages.items():
        for link in page.links + page.parts:
            if urlsplit(link).scheme or outside(link):
                continue
            path, fragment = unquote(urlsplit(link).path), unquote(urlsplit(link).fragment)
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.is_file():
                dead.append(f"{name}: {link}")
            elif fragment.startswith("recording="):  # a moment in the player
                name = parse_qs(fragment)["recording"][0]
                recorded = ROOT / f"docs/player/recordings/{name}.json"
                dead += [] if recorded.exists() or name in pairs else [f"{name}: {link}"]
            elif fragment and target.suffix == ".html":
                to = pages[target.relative_to(site.resolve()).as_posix()[:-5]]
                dead += [] if fragment in to.ids else [f"{name}: {link}"]
    return dead


def test_nothing_is_fetched_from_elsewhere(site):
    found = [part for page in pages_in(site).values() for part in page.parts if outside(part)]
    css = r"(?:@import|url\()\s*[\"']?\s*((?:https?:)?//[^\"')]+)"
    js = r"(?:fetch|import|importScripts|src\s*[=:]|open)\s*\(?\s*[\"'`]((?:https?:)?//[^\"'`]+)"
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js") and not path.is_dir():
            text = path.read_text(encoding="utf-8")
            found += re.findall(css, text) + re.findall(js, text)
    assert not found


def test_no_table_is_raw_text(site):
    """What a cell of a notebook prints as Markdown may hold a table."""
    assert not [name for name, page in pages_in(site).items() if "<p>|" in page.path.read_text()]


def test_previous_and_next_skip_the_listings(site):
    listings = {path.relative_to(ROOT).with_suffix("").as_posix() for path in files(".py")}
    for name, page in pages_in(site).items():
        found = re.findall(
            r'class="(?:left-prev|right-next)"\s+href="([^"]+)"', page.path.read_text()
        )
        paths = [(page.path.parent / link).resolve().relative_to(site.resolve()) for link in found]
        assert not listings & {path.with_suffix("").as_posix() for path in paths}, name


def test_a_listing_names_its_page_and_its_lines(site):
    for name, home in (
        ("03_ddp_spawn/train", "README.html"),
        ("docs/examples/adapt_after", "../adapt.html"),
        ("exercises/checks/01_same_order", "../README.html"),
    ):
        page = pages_in(site)[name]
        assert re.search(rf'<p>Part of <a class="[^"]*" href="{home}">', page.path.read_text()), (
            name
        )
        lines = len(read(f"{name}.py").splitlines())
        assert f"L-{lines}" in page.ids and f"L-{lines + 1}" not in page.ids


def test_the_records_are_listed_with_what_they_say(site):
    html = (site / "docs/timings/index.html").read_text()
    records = sorted(ROOT.glob("docs/timings/**/*.json"))
    assert "one run of a stage" in html and html.count("<tr><td><a ") == len(records) > 0
    for folder in ("benchmarks/results", "exercises/checks", "exercises/solutions"):
        listed = (site / folder / "index.html").read_text()
        assert re.search(r'<p>[A-Z][^<]+ Explained in <a href="[^"]+README.html">', listed), folder


def test_code_begins_at_the_left(site):
    for name in ("03_ddp_spawn/README", "05_multinode/README", "docs/adapt"):
        html = pages_in(site)[name].path.read_text()
        blocks = re.findall(
            r'highlight-python[^>]*><div class="highlight"><pre>(.*?)</pre>', html, re.S
        )
        for block in blocks:
            lines = re.sub("<.*?>", "", block).splitlines()
            assert min(len(line) - len(line.lstrip()) for line in lines if line) == 0, (name, lines)


def test_a_shared_link_has_a_title_a_sentence_and_a_picture(site):
    for name in ("index", "docs/messages", "notebooks/03_ddp_spawn"):
        html = pages_in(site)[name].path.read_text()
        has = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', html))
        assert has["title"] and 60 < len(has["description"]) <= 210, has
        assert (site / name).parent.joinpath(has["image"]).is_file(), has
    start = (site / "index.html").read_text()
    assert (
        len(re.findall("Data-parallel training in PyTorch", re.search("<title>.*", start)[0])) == 1
    )


def test_each_picture_has_words(site):
    for name, page in pages_in(site).items():
        words = [alt for alt in page.alts if alt and " " in alt]  # else it is the file's name
        assert words == page.alts, name
    assert len(pages_in(site)["notebooks/03_ddp_spawn"].alts) >= 5


def test_headings_are_in_order(site):
    for name, page in pages_in(site).items():
        if name == "search":  # filled in by its script
            continue
        steps = [after - before for before, after in zip(page.headings, page.headings[1:])]
        assert page.headings[:1] == [1] and page.headings.count(1) == 1, (name, page.headings)
        assert max(steps, default=0) <= 1, (name, page.headings)
        assert page.language == "en", name


# ---------------------------------------------------------------- the foot line


def test_each_page_names_the_version(site):
    torch = re.search(r"^torch==(.+)$", read("requirements.txt"), re.MULTILINE)[1]
    for name in set(pages_in(site)) - {"search"}:
        text = " ".join("".join(pages_in(site)[name].text).split())
        assert f"tested with PyTorch {torch} on Linux." in text, name


@pytest.mark.parametrize("page", files(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_that_shows_results_names_them(page):
    """<!-- figures: PATH ... --> stands where a table or a picture of records does."""
    text = page.read_text(encoding="utf-8")
    named = " ".join(re.findall(r"^<!-- figures: (.+) -->$", text, re.MULTILINE)).split()
    assert all((ROOT / path).exists() for path in named)
    shows = re.search(r"!\[.*\]\(.*(results|timings)/|images/s  |of the committed records", text)
    assert named or not shows


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def address(site):
    """The site's address while it is served: under file:// a page may not read another."""
    with served(site) as address:
        yield address


def complaints(chromium, address, name):
    """What is wrong with a page on a laptop and on a phone, by day and by night."""
    wrong = []
    for width, theme in ((1280, "light"), (1280, "dark"), (420, "light"), (420, "dark")):
        media = [{"name": "prefers-color-scheme", "value": theme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.get(f"{address}/{name}.html")
        page, article, shown, fetched, bytes_ = chromium.execute_script(
            """const article = document.querySelector(".bd-article-container");
            return [document.documentElement.scrollWidth,
                    article.scrollWidth - article.clientWidth,
                    document.documentElement.dataset.theme,
                    performance.getEntriesByType("resource").map(entry => entry.name),
                    performance.getEntries().map(entry => entry.decodedBodySize ?? 0)]"""
        )
        found = {
            "is wider than the screen": page > width or article > 0,
            "has another theme": shown != theme,
            "fetches from elsewhere": [name for name in fetched if not name.startswith(address)],
            "is heavier than 1 MB": [sum(bytes_)] if sum(bytes_) > 1e6 else [],
            "writes to the console": [
                entry["message"]
                for entry in chromium.get_log("browser")
                if entry["level"] in ("WARNING", "SEVERE")  # not the browser's own hints
            ],
        }
        wrong += [f"{name} {width} {theme} {what}: {why}" for what, why in found.items() if why]
    return wrong


@NEEDS_BROWSER
@pytest.mark.parametrize("name", VISITED)
def test_a_page_in_the_browser(chromium, address, name):
    assert not complaints(chromium, address, name)


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_pages_in_the_browser(chromium, address, site):
    scripts = {path.relative_to(ROOT).with_suffix("").as_posix() for path in files(".py")}
    names = set(pages_in(site)) - scripts
    assert len(names) > 40
    assert not [line for name in sorted(names) for line in complaints(chromium, address, name)]


FOUND = """const words = Search._parseQuery(arguments[0]);
    return Search._performSearch(...words).reverse().map(found => [found[0], found[2]])"""


@NEEDS_BROWSER
@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_finds_the_page(chromium, address, words):
    chromium.get(f"{address}/search.html")
    chromium.execute_async_script("addEventListener('load', arguments[0]), arguments[0]()")
    found = chromium.execute_script(FOUND, words)
    assert SEARCHES[words] in [page for page, _ in found[:3]], found[:6]
    if SEARCHES[words] == "docs/messages":  # its sections are the entries
        assert dict(map(reversed, found[:3])).get("") != "docs/messages", found


@NEEDS_BROWSER
def test_what_the_search_shows(chromium, address):
    chromium.get(f"{address}/search.html?q=ring+all-reduce")
    found = results(chromium)
    assert not [text for _, text in found if "System Settings" in text], "the theme's buttons"
    assert found[0][0].startswith("notebooks/05_ring_allreduce.html")
    chromium.get(f"{address}/search.html?q=what+this+repository+is+MNIST+five+scripts")
    results(chromium)
    for link in chromium.find_elements("css selector", "#search-results li a"):
        path = urlsplit(link.get_attribute("href")).path
        assert path != "/README.html"


def results(chromium):
    from selenium.webdriver.support.ui import WebDriverWait

    shown = """const found = [...document.querySelectorAll("#search-results li")];
        return found.every(one => one.querySelector(".context")) && found.length
            ? found.map(one => [one.querySelector("a").getAttribute("href"), one.innerText]) : 0"""
    return WebDriverWait(chromium, 60).until(lambda _: chromium.execute_script(shown))


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("pasted", "entry"),
    [
        ("Address already", "address-already-in-use-or-eaddrinuse"),
        ("eaddrinuse", "address-already-in-use-or-eaddrinuse"),
        (
            "[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
            "Timed out waiting 1800000ms for recv operation to complete",
            "timed-out-waiting",
        ),
    ],
)
def test_the_messages_page_has_a_filter(chromium, address, pasted, entry):
    chromium.get(f"{address}/docs/messages.html")
    chromium.find_element("css selector", "input.filter").send_keys(pasted)
    rows = (
        "return [...document.querySelectorAll('.bd-article tbody tr')].filter(r => r.offsetHeight)"
    )
    rows += ".map(row => row.querySelector('a').hash)"
    shown = chromium.execute_script(rows)
    assert 1 <= len(shown) <= 4 and any(entry in name for name in shown), shown
    chromium.find_element("css selector", "input.filter").clear()
    chromium.execute_script(
        "document.querySelector('input.filter').dispatchEvent(new Event('input'))"
    )
    assert len(chromium.find_elements("css selector", ".bd-article tbody tr")) > 80


@NEEDS_BROWSER
def test_the_start_page_shows_the_player_and_three_ways_first(chromium, address):
    for width, height in ((1280, 900), (420, 900)):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.get(f"{address}/index.html")
        tops = chromium.execute_script(
            """const top = (css) => document.querySelector(css).getBoundingClientRect().top;
            return [top(".player .stage"), top(".bd-article ul"), top(".highlight-diff"),
                    document.querySelectorAll(".bd-article ul")[0].children.length]"""
        )
        assert tops[0] < height * 0.6 and tops[0] < tops[1] < tops[2] and tops[3] == 3
        assert width < 500 or tops[1] < height, "the three ways are on the first screen"
    wide = "const pre = document.querySelector('.highlight-diff pre'); return pre.scrollWidth"
    assert chromium.execute_script(f"{wide} - pre.clientWidth") <= 0, "the comments are cut off"


@NEEDS_BROWSER
def test_pictures_are_dark_in_the_dark(chromium, address):
    from PIL import Image, ImageStat

    media = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    try:
        for name in ("notebooks/05_ring_allreduce", "benchmarks/README", "index"):
            chromium.get(f"{address}/{name}.html")
            picture = chromium.find_element("css selector", ".bd-article img")
            png = io.BytesIO(picture.screenshot_as_png)
            assert ImageStat.Stat(Image.open(png).convert("L")).median[0] < 60, name
    finally:
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

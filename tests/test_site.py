"""The site that make site builds: no warning, no dead link, no request elsewhere, and a browser."""

import functools
import gzip
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from browser import NEEDS_BROWSER, served
from conftest import ROOT, files
from filelock import FileLock

pytestmark = pytest.mark.slow

WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
pytest.importorskip("sphinx_book_theme", reason="requirements/dev.txt has it for Python 3.11 on")
SEARCHES = {  # a page that has to be among the first three: what readers type
    "02_dp/README": "dataparalell, difference between dataparallel and distributeddataparallel",
    "05_multinode/launch/README": "torchrun slurm, kubernetes",
    "docs/adapt": "how to use multiple gpus in pytorch",
    "docs/at_scale": "how many gpus do i need, strong and weak scaling",
    "docs/batch_size_and_learning_rate": "learning rate multiple gpus, effective batch size, "
    "how to choose batch size with ddp, loss not decreasing, not converging, 学习率, 损失不下降",
    "docs/checklist": "print only on rank 0, print only once",
    "docs/checkpoints": "checkpoint, save checkpoint ddp, how to resume after crash, 保存模型",
    "docs/compile": "torch compile ddp",
    "docs/debugging": "NCCL watchdog, my script hangs, training stuck, hung, "
    "卡住, 训练卡住, 卡死, 死锁",
    "docs/doctor": "is my script correct, bug in my script, wrong results, 脚本诊断",
    "docs/fsdp": "fsdp vs ddp",
    "docs/glossary": "rank 是什么",
    "docs/gradient_accumulation": "gradient accumulation, 梯度累积",
    "docs/is_it_ddp": "nan, loss nan two gpus, loss is nan, gpu memory grows every step, "
    "device-side assert, no kernel image",
    "docs/around_the_ranks": "pytorchjob world_size, RendezvousClosedError, do i need ssh",
    "docs/host": "persistent_workers, h5py dataloader, how many num_workers",
    "docs/nccl_timeout": "nccl timeout",
    "docs/memory": "cuda oom, 显存不足",
    "docs/questions": "ports firewall, different results",
    "docs/reading_timings": "ddp slower than single gpu, no speedup, not faster with 2 gpus, "
    "gpu utilization low, 训练变慢",
    "docs/speed": "speed, slower than one gpu, why is my script slow, gpu utilization, 速度慢",
    "docs/teaching": "homework for students",
    "docs/testing": "test ddp without gpu",
    "docs/uneven_inputs": "uneven number of batches",
    "docs/unused_parameters": "find_unused_parameters",
    "exercises/README": "quiz, 练习",
    "notebooks/01_data_loading": "data loader slow num_workers",
    "notebooks/03_samplers_and_seeds": "set_epoch, sampler same order every epoch",
    "notebooks/05_ring_allreduce": "ring allreduce, allreduce bandwidth",
    "03_ddp_spawn/README.zh": "单机多卡",
    "04_ddp_torchrun/README": "torchrun",
    "05_multinode/README.zh": "多机多卡, 断点续训",
    "docs/messages": "端口被占用",
}
FIRST = {"checkpoint": "docs/checkpoints", "torchrun": "04_ddp_torchrun/README"}
HAN = "[\u4e00-\u9fff]"
MESSAGES = ["docs/messages", "docs/messages_hangs", "docs/messages_training"]
MESSAGES += ["docs/messages_devices", "docs/nccl_timeout"]
ENTRIES = [  # the same for an entry of the pages of messages
    *("accuracy lower with 2 gpus", "SyncBatchNorm", "module. prefix", "address already in use"),
    *("exit code 1 traceback torchrun", "connection refused"),
]


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
        self.alts, self.headings, self.language, self.text = [], [], None, []
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

    def handle_data(self, data):
        self.text.append(data)


@functools.cache
def pages_in(folder):
    """{path without ending: Page} of all pages of the site"""
    found = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    return {path.relative_to(folder).as_posix()[:-5]: Page(path) for path in found}


# ---------------------------------------------------------------- the files


def test_each_page_and_notebook_is_there(site):
    sources = [path.relative_to(ROOT) for path in files(".md") + files(".ipynb")]
    names = [source.with_suffix("") for source in sources if "source" not in source.parts]
    names = [name.as_posix() for name in names if name.parts[0] != "tests"]
    names[names.index("README")] = "index"
    assert set(names) <= set(pages_in(site)) and "05_multinode/launch/kubernetes" in pages_in(site)
    assert not (site / "README.html").exists(), "the same page twice"


COMPUTED = r"computed-(ring|tree|naive)-ranks-[2-8]"


def test_each_link_leads_to_a_page_and_a_place_on_it(site):
    pages, dead = pages_in(site), []
    pairs = yaml.safe_load(read("docs/player/words.yml"))["pairs"]
    for name, page in pages.items():
        for link in page.links + page.parts:
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            path, fragment = unquote(urlsplit(link).path), unquote(urlsplit(link).fragment)
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.is_file():
                dead.append(f"{name}: {link}")
            elif fragment.startswith("recording="):  # a moment in the player
                shown = parse_qs(fragment)["recording"][0]
                recorded = ROOT / f"docs/player/recordings/{shown}.json"
                is_known = recorded.exists() or shown in pairs or re.fullmatch(COMPUTED, shown)
                dead += [] if is_known else [f"{name}: {link}"]
            elif fragment and target.suffix == ".html":
                to = pages[target.relative_to(site.resolve()).as_posix()[:-5]]
                dead += [] if fragment in to.ids else [f"{name}: {link}"]
    assert not dead


def test_a_listing_names_its_page_and_its_lines(site):
    page = pages_in(site)["docs/examples/adapt_after"]
    assert re.search(r'<p>Part of <a class="[^"]*" href="../adapt.html">', page.path.read_text())
    lines = len(read("docs/examples/adapt_after.py").splitlines())
    assert f"L-{lines}" in page.ids and f"L-{lines + 1}" not in page.ids


def test_a_shared_link_has_a_title_a_sentence_and_a_picture(site):
    for name in ("index", "docs/messages", "notebooks/03_ddp_spawn"):
        html = pages_in(site)[name].path.read_text()
        has = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', html))
        assert has["title"] and 60 < len(has["description"]) <= 210, has
        assert (site / name).parent.joinpath(has["image"]).is_file(), has
    title = re.search("<title>.*", (site / "index.html").read_text())[0]
    assert title.count("Data-parallel training in PyTorch") == 1


def test_what_each_page_has(site):
    """Headings in order, pictures with words, tables that are none of text, the version."""
    torch = re.search(r"^torch==(.+)$", read("requirements.txt"), re.MULTILINE)[1]
    for name, page in pages_in(site).items():
        assert page.language == ("zh-CN" if name.endswith(".zh") else "en"), name
        assert "<p>|" not in page.path.read_text(), name
        assert all(alt and re.search(r" |，", alt) for alt in page.alts), name  # no file's name
        if name == "search":  # filled in by its script
            continue
        steps = [after - before for before, after in zip(page.headings, page.headings[1:])]
        assert page.headings[:1] == [1] and page.headings.count(1) == 1, (name, page.headings)
        assert max(steps, default=0) <= 1, (name, page.headings)
        text = " ".join("".join(page.text).split())
        chinese = f"在 Linux 上用 PyTorch {torch} 测试"
        line = chinese if name.endswith(".zh") else f"tested with PyTorch {torch} on Linux."
        assert line in text, name


def test_previous_and_next_lead_along_the_path(site):
    """From the start page to the last one, and nowhere past a listing or to another language."""
    pages = pages_in(site)

    def next_of(name):
        link = re.search(r'<a class="right-next" href="([^"]+)"', pages[name].path.read_text())
        if link is None:
            return None
        target = (pages[name].path.parent / link[1]).resolve()
        return target.relative_to(site.resolve()).as_posix()[:-5]

    for start, ending, last in (("index", "", "CONTRIBUTING"), ("README.zh", ".zh", None)):
        way = [start]
        while next_of(way[-1]):
            way.append(next_of(way[-1]))
            assert len(way) < 200, "a circle"
        scripts = [name for name in way if (ROOT / f"{name}.py").exists()]
        assert not scripts and not [name for name in way if name.endswith("AGENTS")]
        assert all(name.endswith(ending) for name in way)
        assert all(name.endswith(".zh") for name in way) == (ending == ".zh")
        stages = [name for name in way if re.fullmatch(r"0\d_\w+/README(\.zh)?", name)]
        assert len(stages) == 5 and stages == sorted(stages)
        assert way[-1] == (last or way[-1])
        assert "left-prev" not in pages[start].path.read_text()


def test_cells_with_a_magic_have_colours(site):
    html = pages_in(site)["notebooks/05_ring_allreduce"].path.read_text()
    cells = re.findall(
        r"<pre>(?:<span></span>)?<span class=\"cp\">%%torchrun.*?</pre>", html, re.DOTALL
    )
    assert len(cells) == 3 and all(cell.count("<span class") > 20 for cell in cells)


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:  # under file:// a page may not read another
        yield address


def look_at(chromium, address, width=1280, theme="light"):
    media = [{"name": "prefers-color-scheme", "value": theme}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chromium.get(address)


@NEEDS_BROWSER
def test_a_missing_page_below_the_top_folder_looks_like_a_page(chromium, tmp_path):
    """A site of two pages, built for the address at which it is served."""
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    built.mkdir()
    (source / "README.md").write_text("# Start\n\nWords.\n")
    with served(built) as address:
        command = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT / "docs/site", source, built]
        environment = os.environ | {"SITE_URL": f"{address}/", "REPOSITORY_URL": ""}
        subprocess.run(command, env=environment, capture_output=True, timeout=250, check=True)
        for missing in ("c.html", "a/b/c.html"):
            chromium.get_log("browser")
            look_at(chromium, f"{address}/{missing}")
            title, font, left, failed = chromium.execute_script(
                """const heading = document.querySelector(".bd-article h1");
                const entries = performance.getEntriesByType("resource")
                    .filter((one) => one.responseStatus >= 400);
                return [document.title, getComputedStyle(heading).fontFamily,
                        heading.getBoundingClientRect().left,
                        entries.map((one) => one.name)]"""
            )
            assert title.startswith("There is no such page")
            assert "sans-serif" in font and left > 100, "no style sheet"
            assert not failed
            log = [one["message"] for one in chromium.get_log("browser") if one["level"] in SEEN]
            assert len(log) == 1 and missing in log[0], "only the page itself is missing"
            start = chromium.find_element("css selector", ".bd-article a[href='index.html']")
            assert start.get_property("href") == f"{address}/index.html"


SEEN = ("WARNING", "SEVERE")  # on the console: without the browser's own hints
# No table is wider than its box, and no column of text is narrower than 12 em.
TABLES = """const [width] = arguments, wrong = [];
    const em = (cell) => parseFloat(getComputedStyle(cell).fontSize);
    for (const table of document.querySelectorAll(".bd-article table:not(.highlighttable)")) {
        const box = table.parentElement.clientWidth + 1;
        const name = table.textContent.trim().slice(0, 30);
        // A phone may scroll a table of figures; a table of text is stacked there.
        const scrolls = getComputedStyle(table.parentElement).overflowX === "auto";
        const may = width < 500 && scrolls && !table.querySelector("td.text");
        if (table.scrollWidth > box && !may) wrong.push(`${name}: ${table.scrollWidth} of ${box}`);
        for (const cell of table.querySelectorAll("td.text"))
            if (cell.offsetHeight && cell.clientWidth < 12 * em(cell) - 1)
                wrong.push(`${name}: a column of ${cell.clientWidth} pixels`);
    }
    return [...new Set(wrong)]"""


def complaints(chromium, address, name):
    """What is wrong with a page on a laptop and on a phone, by day and by night."""
    wrong = []
    heaviest = 1.3e6 if name == "search" else 1e6  # bytes without compression; the index grows
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        look_at(chromium, f"{address}/{name}.html", width, theme)
        cut, indented, page, article, shown, fetched, bytes_ = chromium.execute_script(
            """const article = document.querySelector(".bd-article-container");
            const code = [...article.querySelectorAll(".bd-article pre")];
            const lines = (pre) => pre.textContent.split("\\n").filter(Boolean);
            return [code.filter((pre) => pre.scrollWidth > pre.clientWidth).map(lines),
                    code.filter((pre) => pre.closest(".highlight-python")).map(lines)
                        .filter((all) => all.every((line) => line.startsWith(" "))),
                    document.documentElement.scrollWidth,
                    article.scrollWidth - article.clientWidth,
                    document.documentElement.dataset.theme,
                    performance.getEntriesByType("resource").map(entry => entry.name),
                    performance.getEntries().map(entry => entry.decodedBodySize ?? 0)]"""
        )
        log = chromium.get_log("browser")
        found = {
            "cuts lines off": cut if width == 1280 else [],
            "begins code with an indent": indented,
            "has tables that nobody can read": chromium.execute_script(TABLES, width),
            "is wider than the screen": page > width or article > 0,
            "has another theme": shown != theme,
            "fetches from elsewhere": [name for name in fetched if not name.startswith(address)],
            "is too heavy": [sum(bytes_)] if sum(bytes_) > heaviest else [],
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


FOUND = """const words = Search._parseQuery(arguments[0]);
    return Search._performSearch(...words).reverse().map(found => [found[0], found[2]])"""


@NEEDS_BROWSER
def test_the_search_finds_the_page(chromium, address):
    chromium.get(f"{address}/search.html")
    chromium.execute_async_script("addEventListener('load', arguments[0]), arguments[0]()")
    typed = [(words, page) for page, all in SEARCHES.items() for words in all.split(", ")]
    for words, page in typed + [(words, "docs/messages") for words in ENTRIES]:
        found = chromium.execute_script(FOUND, words)[:3]
        pages = MESSAGES if words in ENTRIES else [page]
        anchors = [anchor for name, anchor in found if name in pages]
        assert anchors and (anchors[0] or words not in ENTRIES), (words, page, found)
        assert found[0][0] == FIRST.get(words, found[0][0]), (words, found)
        if not re.search(HAN, words):
            assert not found[0][0].endswith(".zh"), (words, found)


@NEEDS_BROWSER
def test_the_search_of_a_site_opened_as_a_file(chromium, site):
    chromium.get(f"{site.as_uri()}/search.html?q=nccl+timeout")
    found = ("css selector", "#search-results li")
    WebDriverWait(chromium, 60).until(lambda _: chromium.find_elements(*found))
    assert not [one for one in chromium.get_log("browser") if one["level"] == "SEVERE"]


LOGS = ROOT / "doctor/tests/logs"


def log_files():
    """The logs of each case -> [(name of the case, paths)]"""
    cases = []
    for path in sorted(LOGS.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        cases.append((path.stem, [LOGS / name for name in case["files"]]))
    return cases


def explained_in_python(paths):
    code = "import json, sys; from ddp_doctor.explain import explain; "
    code += "print(json.dumps([explain(paths) for paths in json.load(sys.stdin)]))"
    text = json.dumps([[str(path) for path in group] for group in paths])
    environment = os.environ | {"PYTHONPATH": str(ROOT / "doctor"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@NEEDS_BROWSER
def test_both_halves_of_explain_say_the_same(chromium, address, tmp_path):
    """The command and the page, on all logs of the corpus and on input that is no log."""
    cases = log_files()
    odd = {
        "empty": b"",
        "bytes": b"\xff\x00\x80 rank {0}",
        "bar": b"\x1b[31m10%|#\r20%|##\r\x1b[0m",
    }
    odd["windows"] = (LOGS / "s20-worker-bus-error.log").read_bytes().replace(b"\n", b"\r\n")
    # Python rounds a quarter of a minute to an even digit.
    timeout = (LOGS / "s01-rank-out-of-batches.log").read_bytes()
    for seconds in (9, 15, 75, 105):
        text = timeout.replace(b"Timeout(ms)=1800000", b"Timeout(ms)=%d" % (1000 * seconds))
        odd[f"timeout of {seconds} s"] = text
    for name, content in odd.items():
        path = tmp_path / f"{name}.log"
        path.write_bytes(content)
        cases.append((name, [path]))
    wanted = explained_in_python([paths for _, paths in cases])
    given = []
    for _, paths in cases:
        texts = [path.read_bytes().decode("utf-8", "replace") for path in paths]
        given.append([{"name": path.name, "text": text} for path, text in zip(paths, texts)])
    chromium.get(f"{address}/docs/messages.html")
    found = chromium.execute_async_script(
        "explainReady().then(() => arguments[1](arguments[0].map((one) => Explain.explain(one))))",
        given,
    )
    for (name, _), python, browser in zip(cases, wanted, found):
        browser.pop("life", None)  # only the page draws it
        assert browser == python, name


@NEEDS_BROWSER
def test_the_messages_pages_explain_a_log(chromium, address):
    chromium.get(f"{address}/docs/messages_hangs.html?q=Signal+9+(SIGKILL)+received+by+PID+30413")
    shown = ("css selector", ".explain-result")

    def says(words):
        return lambda _: words in chromium.find_element(*shown).text

    WebDriverWait(chromium, 30).until(says("A rank was killed"))
    link = chromium.find_element("css selector", ".explain-result dd a")
    assert link.get_attribute("href").endswith("messages_hangs.html#a-rank-was-killed")
    chromium.get(f"{address}/docs/messages.html")
    buttons = chromium.find_elements("css selector", ".explain-examples button")
    causes = ("rank 0", "rank 1", "ranks 0 and 1", "rank 0")
    for button, cause in zip(buttons, causes, strict=True):
        button.click()
        WebDriverWait(chromium, 30).until(says(f"Root cause\n{cause}"))
    field = chromium.find_element("css selector", ".explain textarea")
    field.clear()
    field.send_keys("exit barrier")
    chromium.find_element("css selector", ".explain-go").click()
    WebDriverWait(chromium, 30).until(says("did not finish at the same time"))
    field.clear()
    field.send_keys("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    chromium.find_element("css selector", ".explain-go").click()
    WebDriverWait(chromium, 30).until(says("the report has only its exit code"))


@NEEDS_BROWSER
def test_explain_reads_chosen_files_of_a_site_opened_as_a_file(chromium, site):
    """No server, two files, a phone in the dark: a lane per rank, and nothing is too wide."""
    look_at(chromium, f"{site.as_uri()}/docs/messages_devices.html", 390, "dark")
    paths = [str(path) for path in sorted((LOGS / "s05-one-rank-died").iterdir())]
    chromium.find_element("css selector", ".explain input").send_keys("\n".join(paths))
    result = chromium.find_element("css selector", ".explain-result")
    WebDriverWait(chromium, 30).until(lambda _: "Root cause\nrank 6" in result.text)
    lanes = chromium.find_elements("css selector", ".explain-lanes .lane b")
    assert any("(cause)" in lane.text for lane in lanes)
    wide = "return document.documentElement.scrollWidth"
    assert chromium.execute_script(wide) <= 390
    assert not chromium.find_element("css selector", ".explain-link").is_displayed()


@NEEDS_BROWSER
def test_a_link_to_a_short_text_explains_it_again(chromium, address):
    chromium.get(f"{address}/docs/messages.html")
    words = "RuntimeError: Address already in use"
    chromium.find_element("css selector", ".explain textarea").send_keys(words)
    chromium.find_element("css selector", ".explain-go").click()
    link = chromium.find_element("css selector", ".explain-link")
    WebDriverWait(chromium, 30).until(lambda _: link.is_displayed())
    link.click()
    assert parse_qs(urlsplit(chromium.current_url).query)["q"] == [words]
    chromium.refresh()
    shown = ("css selector", ".explain-result")
    WebDriverWait(chromium, 30).until(
        lambda _: "Another process has the port" in chromium.find_element(*shown).text
    )


# A log of 5 MB: eight ranks that print each step, and at the end an NCCL timeout.
LONG_LOG = """const [end, done] = arguments, lines = [];
    for (let step = 0, size = 0; size < 5e6; step++)
        for (let rank = 0; rank < 8; rank++) {
            const clock = [step / 3600, step / 60, step].map((part) => Math.floor(part) % 60);
            const time = clock.map((part) => String(part).padStart(2, "0")).join(":");
            lines.push(`[rank${rank}]: ${time} step ${step} loss ${step / 7}`);
            size += lines.at(-1).length + 1;
        }
    explainReady().then(() => {
        const start = performance.now();
        const text = lines.join("\\n") + "\\n" + end;
        const { what } = Explain.explain([{ name: "log", text }]);
        done([what, text.length, performance.now() - start]);
    });"""


@NEEDS_BROWSER
def test_a_log_of_five_megabytes_is_read(chromium, address):
    chromium.get(f"{address}/docs/messages.html")
    chromium.set_script_timeout(120)  # it hangs
    end = (LOGS / "s01-rank-out-of-batches.log").read_text(encoding="utf-8")
    what, characters, milliseconds = chromium.execute_async_script(LONG_LOG, end)
    assert "waited in ALLREDUCE number 28" in what and characters > 4.5e6
    print(f"{characters / 1e6:.1f} MB in {milliseconds / 1000:.1f} s")


@NEEDS_BROWSER
def test_the_start_page_shows_three_ways_and_the_player_first(chromium, address):
    for width in (1280, 420):
        look_at(chromium, f"{address}/index.html", width)
        tops = chromium.execute_script(
            """const top = (css) => document.querySelector(css).getBoundingClientRect().top;
            const all = [".bd-article ul", ".player", ".highlight-sh", ".highlight-diff"];
            return [...all.map(top), document.querySelector(".bd-article ul").children.length]"""
        )
        ways, player, commands, difference, count = tops
        assert count == 3 and ways < difference and player < difference and commands < difference
        assert width < 500 or player < 700, "the player begins on the first screen"
    wide = "const pre = document.querySelector('.highlight-diff pre'); return pre.scrollWidth"
    assert chromium.execute_script(f"{wide} - pre.clientWidth") <= 0, "the comments are cut off"


@NEEDS_BROWSER
def test_a_phone_can_read_copy_and_go_on(chromium, address):
    """Previous above Next, no empty cells, buttons that are seen, pictures with legible words."""
    touch = {"enabled": True}
    chromium.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touch)
    try:
        look_at(chromium, f"{address}/docs/which.html", 375)
        boxes = chromium.execute_script(
            """return [".left-prev", ".right-next"].map((css) => {
                const box = document.querySelector(css).getBoundingClientRect();
                return [box.top, box.bottom, box.width];
            })"""
        )
        (_, bottom, width), (top, _, other) = boxes
        assert bottom <= top and min(width, other) > 250
        look_at(chromium, f"{address}/docs/doctor.html", 375)
        empty, opacities = chromium.execute_script(
            """const all = (css) => [...document.querySelectorAll(css)];
            const isEmpty = (cell) => cell.offsetHeight && !cell.textContent.trim();
            return [all(".stacks td").filter(isEmpty).length,
                    all(".copybtn").map((button) => getComputedStyle(button).opacity)]"""
        )
        assert empty == 0 and set(opacities) == {"1"}
        look_at(chromium, f"{address}/notebooks/05_ring_allreduce.html", 375)
        shown, box, scrolls = chromium.execute_script(
            """const picture = document.querySelector(".picture-box img");
            const { clientWidth, scrollWidth } = picture.parentElement;
            return [picture.clientWidth, clientWidth, scrollWidth]"""
        )
        assert shown == 720 and scrolls >= shown > box, "it keeps its size, and its box scrolls"
    finally:
        chromium.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


@NEEDS_BROWSER
def test_each_command_in_a_table_has_a_button_that_copies_it(chromium, address):
    chromium.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": address},
    )
    look_at(chromium, f"{address}/docs/cheatsheet.html")
    buttons = chromium.find_elements("css selector", "td .copy-command")
    assert len(buttons) > 12
    buttons[0].click()
    copied = ("css selector", ".copy-command.copied")
    WebDriverWait(chromium, 20).until(lambda _: chromium.find_elements(*copied))
    read_back = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
    line = "torchrun --standalone --nproc-per-node 1 SCRIPT"
    assert chromium.execute_async_script(read_back) == line


@NEEDS_BROWSER
def test_lines_of_text_are_short_and_code_is_large_enough(chromium, address):
    look_at(chromium, f"{address}/docs/adapt.html")
    text, code = chromium.execute_script(
        """const text = [...document.querySelectorAll(".bd-article section > p")];
        const pre = document.querySelector(".bd-article .highlight-python pre");
        return [Math.max(...text.map((one) => one.clientWidth)),
                parseFloat(getComputedStyle(pre).fontSize)]"""
    )
    assert text <= 42 * 16 and code >= 13


@NEEDS_BROWSER
def test_nothing_is_cut_on_paper(chromium, address):
    for name in ("index", "docs/cheatsheet", "docs/adapt"):
        look_at(chromium, f"{address}/{name}.html", 720)
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        cut = chromium.execute_script(
            """const parts = document.querySelectorAll(".bd-article :is(pre, table)");
            const end = (part) => part.getBoundingClientRect().right;
            const page = end(document.querySelector(".bd-article"));
            const isCut = (part) => part.scrollWidth > part.clientWidth + 1 || end(part) > page + 1;
            return [...parts].filter((part) => part.offsetHeight && isCut(part))
                .map((part) => part.textContent.slice(0, 60))"""
        )
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        assert not cut, name


RESTS = "return document.readyState === 'complete' && performance.now() > 1500"
SHIFTS = """new PerformanceObserver((list) => {
    for (const entry of list.getEntries())
        if (!entry.hadRecentInput) window.shifted = (window.shifted ?? 0) + entry.value;
}).observe({ type: "layout-shift", buffered: true })"""


@NEEDS_BROWSER
def test_pages_do_not_jump_after_they_were_shown(chromium, address):
    added = chromium.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHIFTS})
    try:
        for name in ("index", "docs/cheatsheet", "docs/player/index", "search"):
            for width in (1280, 390):
                look_at(chromium, f"{address}/{name}.html", width)
                WebDriverWait(chromium, 30).until(lambda _: chromium.execute_script(RESTS))
                shifted = chromium.execute_script("return window.shifted ?? 0")
                assert shifted < 0.1, (name, width, shifted)
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_the_index_and_the_nine_steps_have_headings(site):
    pages = pages_in(site)
    assert {"start", "speed", "correctness", "failures", "reference"} <= pages["docs/README"].ids
    adapt = pages["docs/adapt"]
    steps = [one for one in adapt.ids if re.match(r"[1-9]-[a-z]", one)]
    assert len(steps) == 9 and "5-a-shard-of-every-batch" in steps


@NEEDS_BROWSER
def test_a_notebook_takes_the_readers_number(chromium, address):
    look_at(chromium, f"{address}/notebooks/01_data_loading.html", 390)
    form = chromium.find_element("css selector", ".own-number")
    answer = "form.own-number + details"
    is_open = f"return document.querySelector('{answer}').open"
    assert not chromium.execute_script(is_open)
    measured = re.search(
        r"measured\s+([\d,.]*\d)",
        chromium.find_element("css selector", answer).get_property("textContent"),
    )[1].replace(",", "")
    form.find_element("css selector", "input").send_keys(str(float(measured) / 4))
    form.find_element("css selector", "button").click()
    assert chromium.execute_script(is_open)
    assert "Your number is 4 times too small; that of the" in form.text
    words = "return [[9, 10], [10, 9], [0, 5], [-1, -1], [30, 10]].map((two) => farOff(...two))"
    assert chromium.execute_script(words) == [
        *("10 % too small", "11.1 % too large", "too small by 5", "right", "3 times too large"),
    ]


@NEEDS_BROWSER
def test_each_folded_number_has_a_field(chromium, address, site):
    for name, page in pages_in(site).items():
        if not name.startswith("notebooks/"):
            continue
        folded = re.findall(r"measured\s+<strong>", page.path.read_text())
        chromium.get(f"{address}/{name}.html")
        assert len(chromium.find_elements("css selector", ".own-number")) == len(folded), name


@NEEDS_BROWSER
def test_the_start_page_is_light(chromium, address, site):
    """What its first screen fetches, as a server sends it: less than 300 KB."""
    look_at(chromium, f"{address}/index.html")
    WebDriverWait(chromium, 30).until(lambda _: chromium.execute_script(RESTS))
    addresses = chromium.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    paths = {unquote(urlsplit(one).path)[1:] for one in addresses} | {"index.html"}
    total = 0
    for path in paths:
        content = (site / path).read_bytes()
        is_packed = path.endswith((".png", ".woff2"))
        total += len(content if is_packed else gzip.compress(content))
    assert total < 300e3, total


@NEEDS_BROWSER
def test_pictures_are_dark_in_the_dark(chromium, address):
    from PIL import Image, ImageStat

    for name in ("notebooks/01_baseline", "notebooks/05_ring_allreduce", "index"):
        look_at(chromium, f"{address}/{name}.html", theme="dark")
        for picture in chromium.find_elements("css selector", ".bd-article img"):
            chromium.execute_script("arguments[0].scrollIntoView()", picture)  # then it is fetched
            WebDriverWait(chromium, 20).until(lambda _, one=picture: one.size["height"])
            png = io.BytesIO(picture.screenshot_as_png)
            assert ImageStat.Stat(Image.open(png).convert("L")).median[0] < 60, name

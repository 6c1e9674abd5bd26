"""The site that make site builds: no warning, no dead link, no request elsewhere, and a browser."""

import functools
import gzip
import importlib
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

from benchmarks import scaling

pytestmark = pytest.mark.slow

ui = pytest.importorskip("selenium.webdriver.support.ui")
Select, WebDriverWait = ui.Select, ui.WebDriverWait
Keys = importlib.import_module("selenium.webdriver.common.keys").Keys
pytest.importorskip("sphinx_book_theme", reason="requirements/dev.txt has it for Python 3.11 on")
# A page that has to be among the first three, or the first if it is Chinese: what readers type
SEARCHES = {
    "02_dp/README": "dataparalell, difference between dataparallel and distributeddataparallel",
    "05_multinode/launch/README": "torchrun slurm, kubernetes",
    "docs/adapt": "how to use multiple gpus in pytorch, tqdm prints many times, "
    "only one process should print",
    "docs/at_scale": "how many gpus do i need, strong and weak scaling",
    "docs/batch_size_and_learning_rate": "learning rate multiple gpus, effective batch size, "
    "how to choose batch size with ddp, loss not decreasing, not converging, 学习率, 损失不下降",
    "docs/checklist": "print only on rank 0, print only once",
    "docs/checkpoints": "checkpoint, save checkpoint ddp, how to resume after crash, "
    "保存模型, 检查点",
    "docs/compile": "torch compile ddp",
    "docs/debugging": "NCCL watchdog, my script hangs, training stuck, hung, "
    "卡住, 训练卡住, 卡死, 死锁",
    "docs/doctor": "is my script correct, bug in my script, wrong results, 脚本诊断",
    "docs/fsdp": "fsdp vs ddp",
    "docs/glossary": "local rank, LOCAL_RANK, world size",
    "docs/gradient_accumulation": "gradient accumulation, 梯度累积",
    "docs/is_it_ddp": "nan, loss nan two gpus, loss is nan, gpu memory grows every step, "
    "device-side assert, no kernel image",
    "docs/around_the_ranks": "pytorchjob world_size, RendezvousClosedError, do i need ssh",
    "docs/host": "persistent_workers, h5py dataloader, how many num_workers",
    "docs/nccl_timeout": "nccl timeout, 超时",
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
    "notebooks/03_samplers_and_seeds": "set_epoch, sampler same order every epoch, 采样器",
    "notebooks/05_ring_allreduce": "ring allreduce, allreduce bandwidth",
    "README.zh": "分布式训练, 分布式数据并行, 安装, 镜像, 离线",
    "03_ddp_spawn/README.zh": "单机多卡, 同步",
    "01_baseline/README.zh": "单卡",
    "04_ddp_torchrun/README": "torchrun",
    "05_multinode/README.zh": "多机多卡, 断点续训",
    "05_multinode/RING.zh": "环形 all-reduce",
    "docs/cheatsheet.zh": "启动命令, 环境变量",
    "docs/glossary.zh": "rank 是什么, 主节点, 后端, 分桶, 梯度桶, 学习率缩放, 线性缩放",
    "docs/messages_hangs.zh": "卡住, 训练卡住, 卡死, 死锁, 挂起, 早停, 网卡, 显存, 显存不足, "
    "端口被占用",
}
FIRST = {"checkpoint": "docs/checkpoints", "torchrun": "04_ddp_torchrun/README"}
FIRST |= dict.fromkeys(["local rank", "LOCAL_RANK", "world size"], "docs/glossary")
HAN = "[\u4e00-\u9fff]"
MESSAGES = ["docs/messages", "docs/messages_hangs", "docs/messages_training"]
MESSAGES += ["docs/messages_devices", "docs/nccl_timeout"]
ENTRIES = [  # the same for an entry of the pages of messages
    *("accuracy lower with 2 gpus", "SyncBatchNorm", "module. prefix", "address already in use"),
    *("exit code 1 traceback torchrun", "connection refused", "port already in use", "端口被占用"),
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
        assert all(re.search(" |[\u4e00-\u9fff]", alt or "") for alt in page.alts), (
            name
        )  # no file's name
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
    cells = re.findall(r"<pre[^>]*>(?:<[^>]*>)*%%torchrun.*?</pre>", html, re.DOTALL)
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


FOUND = "return Search.rank(arguments[0]).map(({ page, anchor }) => [page, anchor])"


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
        assert not page.endswith(".zh") or found[0][0] == page, (words, found)
        if not re.search(HAN, words):
            assert not found[0][0].endswith(".zh"), (words, found)


@NEEDS_BROWSER
def test_a_result_shows_the_sentence_with_the_words(chromium, address):
    chromium.get(f"{address}/search.html?q=学习率")
    marks = ("css selector", "#search-results mark")
    WebDriverWait(chromium, 30).until(lambda _: chromium.find_elements(*marks))
    assert {mark.text for mark in chromium.find_elements(*marks)} == {"学习率"}
    chromium.get(f"{address}/search.html?q=bucket")
    WebDriverWait(chromium, 30).until(lambda _: len(chromium.find_elements(*marks)) > 3)
    assert "<a" not in chromium.find_element("css selector", "#search-results").text


@NEEDS_BROWSER
def test_from_a_chinese_page_the_player_is_chinese(chromium, address, site):
    assert "player/index.html?lang=zh" in (site / "README.zh.html").read_text()
    chromium.get(f"{address}/docs/player/index.html?lang=zh")
    tale = ("css selector", ".player[lang=zh-CN] .tale")
    WebDriverWait(chromium, 30).until(lambda _: chromium.find_elements(*tale))
    assert re.search(HAN, chromium.find_element(*tale).text)


@NEEDS_BROWSER
def test_the_search_of_a_site_opened_as_a_file(chromium, site):
    chromium.get(f"{site.as_uri()}/search.html?q=nccl+timeout")
    found = ("css selector", "#search-results li")
    WebDriverWait(chromium, 60).until(lambda _: chromium.find_elements(*found))
    assert not [one for one in chromium.get_log("browser") if one["level"] == "SEVERE"]


@NEEDS_BROWSER
def test_the_dialog_of_the_search_has_the_first_titles(chromium, site):
    """Also of a site opened as a file, and of a page in a folder."""
    look_at(chromium, f"{site.as_uri()}/docs/amp.html")
    chromium.find_element("css selector", ".search-button__button").click()
    chromium.switch_to.active_element.send_keys("port already in use")
    titles = ("css selector", ".search-titles a")
    WebDriverWait(chromium, 30).until(lambda _: chromium.find_elements(*titles))
    first = chromium.find_elements(*titles)[0]
    assert first.get_property("href").endswith("docs/messages.html#another-process-has-the-port")
    assert first.text.startswith("Another process has the port\n")


LOGS = ROOT / "doctor/tests/logs"


def log_files():
    """The logs of each case -> [(name of the case, paths)]"""
    cases = []
    for path in sorted(LOGS.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        cases.append((path.stem, [LOGS / name for name in case["files"]]))
    return cases


def explained_in_python(paths):
    code = "import json, sys; from ddp_doctor.explain.words import explain; "
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
    # The end of torchrun's report, as people paste it.
    odd["code"] = b"  exitcode  : -9 (pid: 1234)\n"
    odd["signal"] = b"traceback : Signal 9 (SIGKILL) received by PID 1234\n"
    odd["stopped"] = (
        b"exitcode  : -15 (pid: 12)\ntraceback : Signal 15 (SIGTERM) received by PID 12"
    )
    torn = b"  exitcode  : 1 (pid: 1)\n  traceback : Traceback (most recent call last):\n"
    odd["torn"] = torn + b'    File "/u/train.py", line 7, in main\n  ValueError: no label\n'
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
    chromium.get(f"{address}/docs/explain.html")
    top = "return document.querySelector('.explain').getBoundingClientRect().top"
    assert chromium.execute_script(top) < 200, "it is the first thing on its own page"
    buttons = chromium.find_elements("css selector", ".explain-examples button")
    causes = ("rank 0", "rank 1", "ranks 0 and 1", "rank 0")
    for button, cause in zip(buttons, causes, strict=True):
        chromium.execute_script("arguments[0].click()", button)  # a result folds them
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
def test_on_a_phone_a_result_comes_into_view_and_says_first_what_to_do(chromium, address):
    """Bars are drawn for logs with times, and marks for those without; some have neither."""
    drawn = []
    for number in range(3):
        look_at(chromium, f"{address}/docs/messages.html", 390)
        chromium.find_elements("css selector", ".explain-examples button")[number].click()
        names = WebDriverWait(chromium, 30).until(
            lambda _: [name.text for name in chromium.find_elements("css selector", ".explain dt")]
        )
        assert names[:3] == ["What happened", "Root cause", "Next"] and names[-1] == "Ranks"
        top, height, wide, bars, marks, caption, is_open = chromium.execute_script(
            """const result = document.querySelector(".explain-result");
            const count = (css) => result.querySelectorAll(css).length;
            return [result.getBoundingClientRect().top, innerHeight,
                document.documentElement.scrollWidth, count(".bar"), count(".mark"),
                count(".explain-lanes > small"), result.querySelector("details").open]"""
        )
        assert 0 <= top < height / 3 and wide <= 390 and not is_open
        assert caption == (bars > 0)
        drawn.append((bars > 0, marks > 0))
    assert set(drawn) == {(True, True), (False, False)}


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("page", "question", "first", "empty"),
    [
        ("docs/messages", "my training hangs after the first epoch", "hangs", "Paste a log first"),
        ("docs/messages_hangs.zh", "训练卡住了", "卡住", "请先粘贴日志"),
    ],
)
def test_words_that_no_message_has_are_searched_for(
    chromium, address, page, question, first, empty
):
    chromium.get(f"{address}/{page}.html")
    chromium.find_element("css selector", ".explain-go").click()
    result = chromium.find_element("css selector", ".explain-result")
    WebDriverWait(chromium, 30).until(lambda _: empty in result.text)
    chromium.find_element("css selector", ".explain textarea").send_keys(question)
    chromium.find_element("css selector", ".explain-go").click()
    links = WebDriverWait(chromium, 30).until(
        lambda _: result.find_elements("css selector", "li a")
    )
    assert "/docs/debugging.html" in links[0].get_attribute("href")
    assert "/docs/messages_hangs" in links[1].get_attribute("href")
    assert first in links[2].text
    address = urlsplit(links[-1].get_attribute("href"))
    assert address.path.endswith("/search.html") and parse_qs(address.query)["q"] == [question]


@NEEDS_BROWSER
def test_own_words_lead_to_the_entry_of_their_topic(chromium, address):
    """Without a hang there is no advice on hangs, and nonsense gets one sentence."""
    chromium.get(f"{address}/docs/explain.html")

    def answered(words):
        chromium.execute_script(
            """document.querySelector(".explain-result").replaceChildren();
            document.querySelector(".explain textarea").value = arguments[0];
            document.querySelector(".explain-go").click()""",
            words,
        )
        result = chromium.find_element("css selector", ".explain-result")
        WebDriverWait(chromium, 30).until(lambda _: result.text)
        links = result.find_elements("css selector", "li a")
        return result.text, [link.get_attribute("href").rpartition("/")[2] for link in links]

    gpu_is_full = "the-model-and-the-batch-need-more-memory-than-the-gpu-has"
    for words, first in (
        ("loss becomes nan after 100 steps", "messages_training.html#the-loss-is-nan-or-infinite"),
        ("I get an OOM in epoch 2", f"messages_devices.html#{gpu_is_full}"),
        ("what to do about a port problem", "messages.html#another-process-has-the-port"),
    ):
        text, links = answered(words)
        assert links[0] == first and "hangs and prints nothing" not in text, words
    for words in ("the cat sat on the mat", "hello world"):
        text, links = answered(words)
        assert text.count("\n") == 0 and "Paste lines" in text and not links, words


@NEEDS_BROWSER
def test_code_and_pages_in_what_explain_says_are_marked(chromium, address):
    chromium.get(f"{address}/docs/messages.html?q=CUDA+out+of+memory.+Tried+to+allocate+2+GiB")
    link = WebDriverWait(chromium, 30).until(lambda _: chromium.find_element("link text", "memory"))
    assert "/docs/memory.html" in link.get_attribute("href")
    words = "Look for `if rank == 0:`, and dmesg | grep -i oom; the flight recorder shows it"
    parts = "return [...english(arguments[0]).children].map((one) => [one.tagName, one.innerText])"
    assert chromium.execute_script(parts, words) == [
        ["CODE", "if rank == 0:"],
        ["CODE", "dmesg | grep -i oom"],
        ["A", "flight recorder"],
    ]


@NEEDS_BROWSER
def test_the_field_of_a_chinese_page_is_chinese(chromium, address):
    chromium.get(f"{address}/docs/messages_hangs.zh.html")
    chromium.find_elements("css selector", ".explain-examples button")[0].click()
    WebDriverWait(chromium, 30).until(
        lambda _: chromium.find_elements("css selector", ".explain dt")
    )
    own = chromium.execute_script(
        """const parts = ".explain :is(h2, label, button, summary, dt, small)";
        const texts = [...document.querySelectorAll(parts)].map((one) => one.textContent);
        return texts.filter(Boolean)"""
    )
    assert not [words for words in own if not re.search(HAN, words)]
    sentences = chromium.find_elements("css selector", ".explain dd > span")
    assert sentences and all(one.get_attribute("lang") == "en" for one in sentences)


def test_each_word_of_the_field_has_a_chinese_one():
    """explain_words.yml has what explain_page.js and the template say, and nothing else."""
    said = yaml.safe_load(read("docs/site/explain_words.yml"))
    script = read("docs/site/static/explain_page.js")
    words = re.findall(r'(?:say|row)\(\s*"([^"]+)"', script)
    captions = re.findall(r'(?:BARS|MARKS) =\s*((?:"[^"]+"[\s+;]*)+)', script)
    words += ["".join(re.findall('"([^"]+)"', caption)) for caption in captions]
    template = read("docs/site/templates/explain_field.html")
    words += [
        one for one in re.findall(">([^<>]+)<", template) if one.strip() and "EXAM" not in one
    ]
    words += re.findall(r'^    "(.+)": "s\d\d-', read("docs/site/hooks.py"), re.MULTILINE)
    assert set(said) == set(words)


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
def test_the_start_page_shows_three_ways_then_the_player(chromium, address):
    for width in (1280, 420):
        look_at(chromium, f"{address}/index.html", width)
        folded = "return !document.querySelector('.folds-on-phone').open"
        assert chromium.execute_script(folded) == (width < 500)
        tops = chromium.execute_script(
            """const top = (css) => document.querySelector(css).getBoundingClientRect().top;
            document.querySelector(".folds-on-phone").open = true;
            const all = [".bd-article ul", ".player", ".highlight-sh", ".highlight-diff"];
            return [...all.map(top), document.querySelector(".bd-article ul").children.length]"""
        )
        ways, player, commands, difference, count = tops
        assert count == 3 and ways < player < commands < difference
        assert width < 500 or ways < 400, "the ways are on the first screen"
    wide = "const pre = document.querySelector('.highlight-diff pre'); return pre.scrollWidth"
    assert chromium.execute_script(f"{wide} - pre.clientWidth") <= 0, "the comments are cut off"


@NEEDS_BROWSER
def test_a_phone_can_read_copy_and_go_on(chromium, address):
    """Previous above Next, no empty cells, buttons that are seen, pictures as a whole."""
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
        shown, place, page = chromium.execute_script(
            """const picture = document.querySelector(".picture-box img");
            picture.scrollIntoView({ block: "center" });
            const { left, top, height } = picture.getBoundingClientRect();
            return [picture.clientWidth, { x: left + 100, y: top + height / 2 },
                    document.documentElement.scrollWidth]"""
        )
        assert shown > 600 and page == 375, "its letters can be read, and only it scrolls"
        for kind, points in (("touchStart", [place]), ("touchEnd", [])):
            touched = {"type": kind, "touchPoints": points}
            chromium.execute_cdp_cmd("Input.dispatchTouchEvent", touched)
        width = "return document.querySelector('.picture-box img').clientWidth"
        wait = ui.WebDriverWait(chromium, 5)
        wait.until(lambda _: chromium.execute_script(width) > 1000)
        assert chromium.current_url.endswith("05_ring_allreduce.html")
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


# The blocks whose copy button lies on a letter.
COVERED = """return [...document.querySelectorAll(".highlight .copybtn")].filter((button) => {
    const own = button.getBoundingClientRect();
    const texts = document.createTreeWalker(button.parentElement.querySelector("pre"), 4);
    while (texts.nextNode()) {
        const range = document.createRange();
        range.selectNodeContents(texts.currentNode);
        const besides = (one) => one.right <= own.left || one.left >= own.right;
        const covers = (one) => !besides(one) && one.top < own.bottom;
        if (texts.currentNode.data.trim() && [...range.getClientRects()].some(covers)) return true;
    }
}).map((button) => button.parentElement.textContent)"""


@NEEDS_BROWSER
def test_on_a_phone_no_copy_button_lies_on_code(chromium, address):
    for name in ("index", "docs/adapt", "03_ddp_spawn/README", "01_baseline/train"):
        look_at(chromium, f"{address}/{name}.html", 390)
        WebDriverWait(chromium, 20).until(
            lambda _: chromium.find_elements("css selector", ".highlight .copybtn")
        )
        assert not chromium.execute_script(COVERED), name


@NEEDS_BROWSER
def test_lines_of_text_are_short_and_code_is_large_enough(chromium, address):
    for name in ("index", "docs/messages_hangs", "benchmarks/README", "01_baseline/train"):
        look_at(chromium, f"{address}/{name}.html")
        least = chromium.execute_script(
            """const sizes = [...document.querySelectorAll(".bd-article pre")]
                .map((pre) => parseFloat(getComputedStyle(pre).fontSize));
            return Math.min(...sizes)"""
        )
        assert least >= 12.5, name
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


JUMPING = ("index", "docs/cheatsheet", "docs/player/index", "docs/eight_gpus")
JUMPING += ("docs/messages", "search")


@NEEDS_BROWSER
def test_pages_do_not_jump_after_they_were_shown(chromium, address):
    # On a busy machine a browser may paint half of a long page, and a table then moves once. A jump
    # that a script of ours makes is there each time, so the least of three counts.
    added = chromium.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHIFTS})
    try:
        for name in JUMPING:
            for width in (1280, 390):
                shifts = []
                while len(shifts) < 3 and min(shifts, default=1) >= 0.1:
                    look_at(chromium, f"{address}/{name}.html", width)
                    WebDriverWait(chromium, 30).until(lambda _: chromium.execute_script(RESTS))
                    shifts.append(chromium.execute_script("return window.shifted ?? 0"))
                assert min(shifts) < 0.1, (name, width, shifts)
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
    number = chromium.find_element("css selector", f"{answer} strong").get_property("textContent")
    field = form.find_element("css selector", "input")
    output = form.find_element("css selector", "output")
    for bad in ("", "abc", "1,9"):
        field.send_keys(bad, Keys.ENTER)
        assert output.text.startswith("Type a number") and not chromium.execute_script(is_open)
        field.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    assert output.text == ""
    field.send_keys(str(float(number.replace(",", "")) / 4))
    form.find_element("css selector", "button").click()
    assert chromium.execute_script(is_open)
    assert output.text.startswith(f"The answer: {number}. ")
    assert "Your number is 4 times too small; that of the" in form.text
    words = "return [[9, 10], [10, 9], [0, 5], [-1, -1], [30, 10]].map((two) => farOff(...two))"
    assert chromium.execute_script(words) == [
        *("10 % too small", "11.1 % too large", "too small by 5", "right", "3 times too large"),
    ]
    exact = (
        "return [[1.875, 1.88], [165.6, 166], [1.86, 1.88], [1, 2]].map((two) => farOff(...two))"
    )
    assert chromium.execute_script(exact) == [
        *("right", "right", "1.06 % too small", "2 times too small"),
    ]


@NEEDS_BROWSER
def test_each_folded_number_has_a_field(chromium, address, site):
    for name, page in pages_in(site).items():
        if not name.startswith("notebooks/"):
            continue
        folded = re.findall(r"<summary>Answer</summary>", page.path.read_text())
        chromium.get(f"{address}/{name}.html")
        assert len(chromium.find_elements("css selector", ".own-number")) == len(folded), name


def test_code_around_a_guess_is_folded(site):
    """Neither the authors' guess nor an assertion stands above the field."""
    html = (site / "notebooks/03_ddp_spawn.html").read_text()
    above = html[html.index("Write down your own number") : html.index("<summary>Answer")]
    guess = above.index("lesson.guessed") if "lesson.guessed" in above else above.index("guessed")
    assert "<details" in above[:guess].rpartition("</details>")[2]


def test_the_column_of_a_chinese_page_begins_with_chinese_pages(site):
    html = (site / "docs/glossary.zh.html").read_text()
    captions = re.findall('caption-text">([^<]+)', html)
    assert captions[0] == "中文" and len(captions) > 5
    assert html.index("<summary>英文页面") < html.index(f'caption-text">{captions[1]}')
    assert "Toggle" not in html and "Download this page" not in html
    assert "目录" in html and "Contents" not in html and "回到顶部" in html


@NEEDS_BROWSER
def test_answers_are_open_and_pages_light_on_paper(chromium, address):
    look_at(chromium, f"{address}/notebooks/01_data_loading.html", theme="dark")
    state = """const answer = document.querySelector("form + details");
        return [answer.open, document.documentElement.dataset.theme]"""
    assert chromium.execute_script(state) == [False, "dark"]
    for media, wanted in (("print", [True, "light"]), ("", [False, "dark"])):
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        chromium.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        WebDriverWait(chromium, 20).until(
            lambda _, wanted=wanted: chromium.execute_script(state) == wanted
        )


@NEEDS_BROWSER
def test_the_cost_of_a_step_with_the_readers_numbers(chromium, address, site):
    """As the address says, by keys, with a number that cannot be, and without JavaScript."""
    path = site / "docs/eight_gpus.html"
    look_at(chromium, f"{address}/docs/eight_gpus.html?gpus=48&busbw=1.25&forward=-1", 390, "dark")
    says = chromium.find_element("css selector", ".step-cost .says")

    def compare(ranks, busbw):
        setting = (4 * 335e6, busbw, ranks, 0.05, 0.1, 0.01)
        cost, times = scaling.step_cost(*setting), scaling.speedup(*setting)
        for words in (
            f"A step of {ranks} GPUs takes {1000 * cost.step:,.0f} ms",
            f"{times:.3g} times as fast",
            f"T is {1000 * cost.all_reduces:,.0f} ms",
            f"{1000 * cost.exposed:,.0f} ms is exposed",
        ):
            assert words in says.text

    def field(name):
        return chromium.find_element("css selector", f"#cost-{name}")

    compare(48, 1.25e9)  # forward=-1 cannot be, and is left out
    assert field("link").get_property("value") == "Ethernet, 10 Gbit/s"
    field("slider").send_keys(Keys.END)
    compare(1024, 1.25e9)
    Select(field("link")).select_by_visible_text("network, 100 Gbit/s")
    compare(1024, 12.5e9)
    given = parse_qs(urlsplit(chromium.current_url).query)
    assert (given["gpus"], given["busbw"]) == (["1024"], ["12.5"])
    chromium.refresh()
    says = chromium.find_element("css selector", ".step-cost .says")
    compare(1024, 12.5e9)
    chromium.find_element("css selector", ".step-cost summary").click()
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390
    before = says.text
    height = "return document.documentElement.scrollHeight"
    heights = [chromium.execute_script(height)]
    field("parameters").clear()
    heights.append(chromium.execute_script(height))
    assert heights[0] == heights[1]
    assert says.text == before  # the last result stays
    assert field("wrong").text == "Millions of parameters: 0.001 to 1,000,000"
    assert field("parameters").get_attribute("aria-describedby") == "cost-wrong"
    assert field("parameters").get_attribute("aria-invalid") == "true"
    unnamed = """return [...document.querySelectorAll(".step-cost :is(input, select)")]
        .filter((one) => !one.labels.length && !one.ariaLabel).length"""
    assert chromium.execute_script(unnamed) == 0
    for link in chromium.find_elements("css selector", ".step-cost a"):
        name, anchor = link.get_dom_attribute("href").split("#")
        assert anchor in pages_in(site)[f"docs/{name.removesuffix('.html')}"].ids
    assert '<div class="player step-cost" id="step-cost"></div>' in path.read_text()


@NEEDS_BROWSER
def test_without_javascript_there_is_no_field(chromium, address):
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look_at(chromium, f"{address}/docs/eight_gpus.html")
        assert not chromium.find_element("css selector", ".step-cost").is_displayed()
        look_at(chromium, f"{address}/docs/explain.html", 390)
        assert "needs JavaScript" in chromium.find_element("css selector", "article").text
        pages = chromium.find_elements("css selector", ".no-script-pages a")
        assert len(pages) == 7 and all(page.is_displayed() for page in pages)
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


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
    assert total < 250e3, total
    assert not [path for path in paths if path.endswith(".woff2")], "icons are shapes: icons.py"


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

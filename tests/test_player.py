"""The player of recorded runs, in a browser; the pages lie in a folder, without a server."""

import base64
import contextlib
import importlib
import json
import re
from urllib.parse import quote

import pytest
import yaml
from browser import NEEDS_BROWSER
from conftest import ROOT
from PIL import Image, ImageChops, ImageStat

hooks = pytest.importorskip("hooks")
pytest.importorskip("selenium.webdriver")
Keys = importlib.import_module("selenium.webdriver.common.keys").Keys
ui = importlib.import_module("selenium.webdriver.support.ui")

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]

PLAYER = ROOT / "docs" / "player"
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Player</title>
<body style="margin: 8px"><p>above</p>
<button id="pst-back-to-top" style="position: fixed; top: 0">Back to top</button>
<div class="player" data-recording="{}">fallback</div>
<p style="height: 2000px">below</p><script src="site/player.js" defer></script></body></html>"""
TABLE = yaml.safe_load((PLAYER / "words.yml").read_text(encoding="utf-8"))
STORIES, PAIRS = TABLE["stories"], TABLE["pairs"]
NAMES = sorted(path.stem for path in PLAYER.glob("recordings/*.json"))
ONE, THREE = (f"step-ranks-2-bucket-cap-mb-{cap}" for cap in ("25", "0.01"))
FAILURES = [name for name in NAMES if name.startswith("failure")]
RING, DIES = "all-reduce-ring-ranks-4", "failure-a-rank-dies-ranks-4"


def read(name):
    return json.loads((PLAYER / "recordings" / f"{name}.json").read_text())


def cause_of(name):
    causes = ("dies", "leaves", "slow")
    ranks = read(name)["ranks"]
    return next(
        rank
        for rank, own in enumerate(ranks)
        if any(one["what"] in causes for one in own["spans"] + own["marks"])
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("player"))


def write_pages(folder):
    """index.html, the same in Chinese, missing.html without its recording, start.html, where the
    player is one of several things, and low.html, where it is below the screen."""
    hooks.write_player(folder / "site")
    recordings = {name: read(name) for name in NAMES}
    (folder / "site/recordings.js").write_text(hooks.as_script({"recordings": recordings}))
    (folder / "index.html").write_text(PAGE.format(ONE))
    (folder / "zh.html").write_text(PAGE.format(ONE).replace('lang="en"', 'lang="zh-CN"'))
    (folder / "missing.html").write_text(PAGE.format("nothing"))
    small = PAGE.format(ONE).replace("data-recording", "data-small data-moves data-recording")
    (folder / "start.html").write_text(small)
    high = '<p style="height: 2000px">above</p>'
    (folder / "low.html").write_text(small.replace("<p>above</p>", high))
    return f"{folder.as_uri()}/"


class Browser:
    """A browser on a page with a player; css is looked up in the player."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, width=1000):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")  # or a changed fragment would not load the page again
        self.driver.get(address)
        self.until(lambda: self.driver.find_elements("css selector", ".player .status, .failed"))

    def until(self, condition):
        return ui.WebDriverWait(self.driver, 60, 0.05).until(lambda _: condition())

    def find(self, css):
        return self.all(css)[0]

    def all(self, css):
        return self.driver.find_elements("css selector", f".player {css}")

    def text(self, css):
        return self.find(css).text

    def follow(self, fragment):
        """As a click on a link to this fragment does."""
        self.script("location.hash = arguments[0]", fragment)
        self.until(lambda: self.fragment == fragment)

    def step(self):
        number, last = re.match(r"step (\d+) of (\d+)\b", self.status).groups()
        return int(number), int(last)

    def script(self, code, *values):
        return self.driver.execute_script(code, *values)

    @contextlib.contextmanager
    def reduced_motion(self):
        media = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        for features in (media, []):
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            if features:
                yield

    def shows(self, name):
        return self.find(".menu").get_property("value") == name

    @property
    def status(self):
        return self.find(".status").get_property("textContent")  # also where it is hidden

    @property
    def fragment(self):
        return self.driver.current_url.partition("#")[2]


@pytest.fixture
def browser(chromium):
    yield Browser(chromium)
    errors = [entry["message"] for entry in chromium.get_log("browser")]
    assert errors == []


def test_it_plays_to_the_end_and_can_be_paused(browser, folder):
    browser.open(f"{folder}index.html#recording={ONE}&step=28")
    (start, last), play = browser.step(), browser.find(".play")
    play.click()
    browser.until(lambda: browser.step()[0] > start)
    play.click()
    assert f"step={browser.step()[0]}" in browser.fragment
    play.click()
    browser.until(lambda: browser.step() == (last, last))


def test_steps_by_button_slider_and_list(browser, folder):
    browser.open(f"{folder}index.html")
    assert browser.text(".status") == "step 0 of 36: the beginning"
    assert browser.find(".cover").get_attribute("visibility") == "hidden"  # in full colour
    browser.find(".forward").click()
    assert browser.find(".cover").get_attribute("visibility") == "visible"
    browser.find(".forward").click()
    browser.find(".back").click()
    _, last = browser.step()
    assert browser.step() == (1, last)
    slider = browser.find("input[type=range]")
    for key, wanted in ((Keys.ARROW_RIGHT, 2), (Keys.END, last), (Keys.HOME, 0)):
        slider.send_keys(key)
        assert browser.step() == (wanted, last)
    browser.find(".steps summary").click()
    assert len(browser.all("tbody tr")) == last
    browser.find("tbody tr:nth-child(9) button").click()
    assert browser.step() == (9, last) and browser.text("tr[aria-current] td").strip() == "9"


def test_the_menu_the_address_and_the_way_back(browser, folder):
    browser.open(f"{folder}index.html")
    assert browser.shows(ONE)
    ui.Select(browser.find(".menu")).select_by_value(THREE)
    browser.until(lambda: browser.shows(THREE))
    browser.find(".forward").click()
    browser.until(lambda: browser.fragment == f"recording={THREE}&step=1")
    browser.open(f"{folder}index.html#{browser.fragment}")
    assert browser.step()[0] == 1 and browser.shows(THREE)
    browser.follow(f"recording={DIES}&step={quote('gets an error')}")
    browser.until(lambda: "gets an error" in browser.text(".status"))
    browser.driver.back()
    browser.until(lambda: browser.shows(THREE) and browser.step()[0] == 1)


def test_an_all_reduce_ends_with_all_chunks_on_all_ranks(browser, folder):
    browser.open(f"{folder}index.html#recording={RING}&step=0")
    held = "return [...document.querySelectorAll('.slot.on text')].map(e => e.textContent).join('')"
    assert browser.script(held) == "0000111122223333" and not browser.all(".frame.whole")
    browser.find(".forward").click()
    assert "sends chunk" in browser.text(".status") and len(browser.all(".pill.flying")) == 4
    browser.find("input[type=range]").send_keys(Keys.END)
    assert browser.script(held) == 16 * "0123" and len(browser.all(".frame.whole")) == 16
    assert "Each rank sends 7,200,000 bytes, 1.50 times" in browser.text(".conclusion")


@pytest.mark.parametrize("name", [*NAMES, *PAIRS])
def test_every_recording_plays_on_a_telephone(browser, folder, name):
    browser.open(f"{folder}index.html#recording={name}&step=99999", width=420)
    number, last = browser.step()
    assert number == last > 3 and browser.shows(name)
    browser.find(".steps summary").click()
    beyond = """return [...document.querySelectorAll('.player *')].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > 420 || box.left < 0);
    }).map((element) => element.outerHTML)"""
    assert browser.script(beyond) == []


def test_what_is_missing_is_one_line(browser, tmp_path, folder):
    browser.open(f"{folder}missing.html")
    assert "nothing" in browser.text("p")
    folder = write_pages(tmp_path)
    (tmp_path / "site/recordings.js").unlink()
    browser.open(f"{folder}index.html")
    assert "recordings.js" in browser.text("p")
    browser.driver.get_log("browser")  # the browser itself reports the missing file


def follow_story(browser, folder, kind):
    """Press Next from the first frame to the last -> the texts of the frames. Where a frame asks
    for the rank that is the cause, choose it: that leads to the next frame."""
    story, texts, places = STORIES[kind], [], []
    browser.open(f"{folder}index.html#recording={story[0][0]}&step=0", width=420)
    place = "return [scrollY, document.querySelector('.next').getBoundingClientRect().top]"
    with browser.reduced_motion():
        for number, (name, words, english, _) in enumerate(story, 1):
            text = re.sub(r"\\{\w+\\}", ".*", re.escape(english))  # figures are in its gaps
            browser.until(lambda text=text: re.fullmatch(text, browser.text(".tale")))
            asks = words == "question"
            assert browser.text(".place") == f"{number} of {len(story)}{': guess first' * asks}"
            assert browser.shows(name)
            step, last = browser.step()
            assert step == last if words in ("question", "end") else words in browser.status
            texts.append(browser.text(".tale"))
            places.append(browser.script(place))
            if asks:
                assert not browser.find(".next").is_enabled()
                browser.all(".picks button")[cause_of(name)].click()
            elif number < len(story):
                browser.find(".next").click()
        assert not browser.find(".next").is_enabled()
    assert len({scrolled for scrolled, _ in places}) == 1, "the page has jumped"
    assert max(top for _, top in places) < 900 - 40, "next is out of sight"
    return texts


@pytest.mark.parametrize("kind", [kind for kind in STORIES if kind != "step"])
def test_next_leads_through_the_story_without_scrolling(browser, folder, kind):
    follow_story(browser, folder, kind)


def test_the_story_of_a_step_is_that_of_its_recording(browser, folder):
    rank = read(THREE)["ranks"][0]
    last = max(mark["at"] for mark in rank["marks"])
    begun = sum(bucket["joined"] < last for bucket in rank["buckets"])
    late = sum(bucket["bytes"] for bucket in rank["buckets"] if bucket["arrived"] > last)
    texts = " ".join(follow_story(browser, folder, "step"))
    assert f"{begun} of 3 all-reduces" in texts and f"{late:,} of 116,136 bytes" in texts


def test_it_moves_by_itself_unless_the_reader_wants_no_motion(browser, folder):
    browser.open(f"{folder}start.html")
    browser.until(lambda: browser.step()[0] > 3)
    browser.find(".play").click()
    assert browser.fragment == "" and not browser.find(".menu").is_displayed()
    with browser.reduced_motion():
        browser.open(f"{folder}start.html")
        assert browser.step()[0] == 0
        browser.find(".play").click()
        browser.until(lambda: browser.step()[0] >= 4)


def test_the_picture_of_shared_links_is_the_film_next_to_it(browser, folder, tmp_path):
    """step.svg is a film (`doctor speed --film`) without its caption. Shared links need a step.png.

    If the film has to change: commit the picture that this test takes, but look at it first.
    """
    browser.driver.get((PLAYER / "step.svg").as_uri())
    size = browser.script(
        """const picture = document.documentElement;
        return [picture.width.baseVal.value, picture.height.baseVal.value]"""
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 2}
    options = {"clip": clip, "captureBeyondViewport": True}
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    (tmp_path / "step.png").write_bytes(base64.b64decode(taken))
    new, old = (Image.open(folder / "step.png").convert("L") for folder in (tmp_path, PLAYER))
    differ = ImageChops.difference(new, old.resize(new.size))
    assert ImageStat.Stat(differ).mean[0] < 5, tmp_path / "step.png"


def test_ranks_that_share_cores_show_no_times(browser, folder):
    browser.open(f"{folder}index.html#recording={ONE}&step=12")
    text = browser.text(".stage") + browser.text(".status") + browser.text(".conclusion")
    assert not re.search(r"\d m?s\b", text)
    browser.follow("recording=failure-slow-rank-ranks-4&step=3")
    browser.until(lambda: re.match(r"step 3 of \d+, \d\.\d+ s: ", browser.status))


@pytest.mark.parametrize("name", [ONE, RING, DIES])
def test_on_a_chinese_page_it_speaks_chinese(browser, folder, name):
    browser.open(f"{folder}zh.html#recording={name}&step=9&answer=shown")
    for part in (".tale", ".next", ".status", ".conclusion", ".legend", ".about"):
        text = browser.find(part).get_property("textContent")  # some are folded or hidden
        assert re.search("[\u4e00-\u9fff]", text), part


def test_the_links_of_the_page_lead_to_steps(browser, folder):
    page = (PLAYER / "index.md").read_text().replace("&amp;", "&")
    browser.open(f"{folder}index.html")
    for link in re.findall(r'<a href="#([^"]+)"', page):
        words = re.search("step=(.*)", link)[1].replace("+", " ")
        expected = "the beginning" if words == "0" else words
        browser.follow(link)
        browser.until(lambda expected=expected: expected in browser.status)


def point(browser, kind, css, x, y, **more):
    """A movement of the pointer on the picture, at a part (0 to 1) of its width and in its row."""
    browser.script(
        """const [kind, css, x, y, more] = arguments;
        const stage = document.querySelector(css), box = stage.getBoundingClientRect();
        const place = { clientX: box.left + x * box.width, clientY: box.top + y };
        stage.setPointerCapture = () => {};
        stage.dispatchEvent(new PointerEvent(kind, { ...place, ...more, bubbles: true }))""",
        *(kind, css, x, y, more),
    )


def test_the_picture_takes_clicks_and_drags(browser, folder):
    browser.open(f"{folder}index.html#recording={ONE}&step=0")
    _, last = browser.step()
    for x, wanted in ((0.999, last), (0.01, 0)):
        point(browser, "pointerdown", ".stage", x, 40)
        point(browser, "pointerup", ".stage", x, 40)
        assert browser.step()[0] == wanted
    point(browser, "pointerdown", ".stage", 0.3, 40)
    seen = []
    for x in (0.4, 0.6, 0.8):
        point(browser, "pointermove", ".stage", x, 40)
        seen.append(browser.step()[0])
    point(browser, "pointerup", ".stage", 0.8, 40)
    assert 0 < seen[0] < seen[1] < seen[2] < last
    point(browser, "pointermove", ".stage", 0.1, 40)
    assert browser.step()[0] == seen[2], "the pointer only passes over it"
    browser.follow(f"recording={RING}&step=3")
    browser.until(lambda: browser.shows(RING))
    for x, wanted in ((0.7, 4), (0.1, 3)):  # without an axis: forward, and at the left back
        point(browser, "pointerdown", ".stage", x, 40)
        point(browser, "pointerup", ".stage", x, 40)
        assert browser.step()[0] == wanted


def test_a_bar_says_what_it_is(browser, folder):
    browser.open(f"{folder}index.html#recording={THREE}&step=0")
    rows = browser.script(
        """return [...document.querySelectorAll('.stage rect')].map((bar) => {
            const stage = document.querySelector('.stage').getBoundingClientRect();
            const box = bar.getBoundingClientRect();
            return [(box.left + box.width / 2 - stage.left) / stage.width,
                    box.top + box.height / 2 - stage.top];
        })"""
    )
    texts = set()
    for x, y in rows:
        point(browser, "pointermove", ".stage", x, y)
        texts.add(browser.find(".tip").get_property("textContent"))
    assert "rank 0: forward" in texts
    bytes_ = read(THREE)["ranks"][0]["buckets"][0]["bytes"]
    buckets = [text for text in texts if "all-reduce of a bucket" in text]
    assert any(f"{bytes_:,} bytes" in text and "9.weight" in text for text in buckets)


def test_on_a_page_of_other_things_it_starts_when_it_is_seen(browser, folder):
    browser.open(f"{folder}low.html")
    top = "return document.querySelector('.stage').getBoundingClientRect().top"
    assert browser.script(top) > 900, "below the screen"
    with contextlib.suppress(Exception):
        ui.WebDriverWait(browser.driver, 1.5).until(lambda _: browser.step()[0] > 0)
    assert browser.step()[0] == 0
    browser.script("document.querySelector('.player').scrollIntoView()")
    browser.until(lambda: browser.step()[0] > 2)


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_tells_the_cause_before_the_guess(browser, folder, name):
    """At the beginning and at the question: all text, also what is folded, and the colours."""
    cause = cause_of(name)
    telling = r"SIGKILL|\d is slow| late|leaves:|no batch|exit code|no longer|gone"
    browser.open(f"{folder}index.html#recording={name}&step=0")
    veil = browser.find(".cover")
    assert veil.get_attribute("visibility") == "visible"
    assert veil.value_of_css_property("opacity") == "1"
    text = """return [...document.querySelectorAll('.player > :not(label)')]
        .map((one) => one.textContent).join(' ')"""
    fills = """return [...document.querySelectorAll('.picture > rect')]
        .map((bar) => /player-\\w+|--[a-z]+/.exec(bar.style.fill)?.[0]).filter(Boolean)"""
    for key in (Keys.HOME, Keys.END):
        browser.find("input[type=range]").send_keys(key)
        assert not re.search(telling, browser.script(text))
        seen = {"player-wait", "--wait", "player-error", "--error", "--busy"}
        assert set(browser.script(fills)) <= seen
        assert not browser.find(".conclusion").is_displayed()
    for rank, choice in enumerate(browser.all(".picks button")):
        if rank != cause:
            choice.click()
            assert browser.text(".question").startswith(f"Not rank {rank}: it ")
            assert "Choose another one." in browser.text(".question")
    assert not browser.find(".conclusion").is_displayed(), "a wrong choice leaves the others"
    browser.all(".picks button")[cause].click()
    assert browser.text(".question") == f"Yes, rank {cause} is the cause."
    assert "This is the cause" in browser.text(".tale") and f"rank {cause}" in browser.text(
        ".status"
    )
    assert f"Rank {cause} is the cause" in browser.text(".conclusion")
    assert not browser.find(".picks").is_displayed()
    assert browser.script("return document.activeElement.className") == "next", "focus is not lost"


def test_who_gives_up_is_told_and_the_address_keeps_it(browser, folder):
    browser.open(f"{folder}index.html#recording={DIES}&step=0")
    assert not browser.find(".giveUp").is_displayed(), "there is nothing yet to judge"
    browser.open(f"{folder}index.html#recording={DIES}&step=1")
    browser.find(".giveUp").click()
    assert browser.text(".question") == f"Rank {cause_of(DIES)} is the cause."
    browser.until(lambda: browser.fragment.endswith("&answer=shown"))
    browser.open(f"{folder}index.html#{browser.fragment}")
    assert (
        "This is the cause" in browser.text(".tale") and not browser.find(".picks").is_displayed()
    )


def test_the_cause_is_not_the_same_rank_in_all_failures():
    assert len({cause_of(name) for name in FAILURES}) == len(FAILURES)


def test_each_click_of_next_is_a_frame_whose_text_is_there_at_once(browser, folder):
    browser.open(f"{folder}index.html#recording={ONE}&step=0")
    for number, (_, _, english, _) in enumerate(STORIES["step"][1:4], 2):
        browser.find(".next").click()
        assert (
            browser.text(".place").startswith(f"{number} of") and browser.text(".tale") == english
        )
    words = STORIES["step"][3][1]
    browser.until(
        lambda: words in browser.status and browser.find(".play").get_attribute("title") == "Play"
    )
    browser.find(".next").click()
    browser.find(".previous").click()
    assert browser.text(".place").startswith("4 of") and words in browser.status


def test_the_conclusion_is_told_at_the_end(browser, folder):
    browser.open(f"{folder}index.html#recording={ONE}&step=0")
    assert not browser.find(".summary").is_displayed()
    browser.find("input[type=range]").send_keys(Keys.END)
    assert "hides behind nothing" in browser.text(".conclusion")


def test_what_covers_the_player_or_is_no_use_on_paper_is_hidden(browser, folder):
    browser.open(f"{folder}index.html")
    button = browser.driver.find_element("id", "pst-back-to-top")
    browser.until(lambda: not button.is_displayed())
    browser.script("scrollTo(0, document.body.scrollHeight)")
    browser.until(button.is_displayed)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    for css in (".next", ".menu", ".controls", ".steps"):
        assert not browser.find(css).is_displayed(), css
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_each_recording_has_a_caption_from_its_beginning(browser, folder):
    for name in [*NAMES, *PAIRS]:
        browser.open(f"{folder}index.html#recording={name}&step=0")
        assert len(browser.text(".tale")) > 20, name


def test_the_ring_can_be_edited(browser, folder):
    browser.open(f"{folder}index.html#recording={RING}&step=0")
    ranks, way = browser.all(".edit select")
    assert "recorded" in browser.text(".edit .source")
    ui.Select(ranks).select_by_visible_text("8")
    browser.until(lambda: browser.shows("computed-ring-ranks-8"))
    assert browser.text(".edit .source") == "computed from the schedule"
    assert browser.step() == (0, 28) and len(browser.all(".picture .box")) == 8
    assert "8 ranks: 14 rounds" in browser.text(".tale") and "1.75 times" in browser.text(".tale")
    with browser.reduced_motion():
        browser.find(".next").click()
        browser.until(lambda: browser.text(".place") == "2 of 15" and browser.step()[0] == 2)
        assert "has the values of 2 ranks" in browser.text(".tale")
    browser.find("input[type=range]").send_keys(Keys.END)
    assert "Every rank now has 8 of 8" in browser.text(".tale")
    assert "It takes 14 rounds" in browser.text(".conclusion")
    ui.Select(way).select_by_visible_text("tree")
    browser.until(lambda: browser.shows("computed-tree-ranks-8"))
    browser.find("input[type=range]").send_keys(Keys.END)
    assert len(browser.all(".frame.whole")) == 8 and "6 rounds" in browser.text(".conclusion")
    browser.follow(f"recording={ONE}&step=0")
    browser.until(lambda: not browser.find(".edit").is_displayed())


@pytest.mark.parametrize("width", [420, 1000])
def test_every_computed_picture_fits_and_no_box_covers_another(browser, folder, width):
    for way in ("ring", "tree", "naive"):
        for ranks in range(2, 9):
            name = f"computed-{way}-ranks-{ranks}"
            browser.open(f"{folder}index.html#recording={name}&step=3", width=width)
            assert browser.shows(name)
            boxes = browser.script(
                """const stage = document.querySelector(".stage").getBoundingClientRect();
                return [stage, ...document.querySelectorAll(".picture .box")].map((one) => {
                    const box = one.getBoundingClientRect?.() ?? one;
                    return [box.left, box.top, box.right, box.bottom];
                })"""
            )
            (left, top, right, bottom), *boxes = boxes
            assert len(boxes) == ranks
            assert width < 560 or bottom - top < 520, "with the controls it fits on a laptop"
            for i, (a, b, c, d) in enumerate(boxes):
                assert left - 1 <= a and c <= right + 1 and top <= b and d <= bottom, name
                others = boxes[:i]
                assert all(c <= e or g <= a or d <= f or h <= b for e, f, g, h in others), name

"""The player of recorded runs, in a browser: from a server and from file://."""

import importlib
import json
import re
from urllib.parse import quote

import pytest
import yaml
from conftest import NEEDS_BROWSER, ROOT, served

hooks = pytest.importorskip("docs.site.hooks")
webdriver = pytest.importorskip("selenium.webdriver")
By = importlib.import_module("selenium.webdriver.common.by").By
Keys = importlib.import_module("selenium.webdriver.common.keys").Keys
ui = importlib.import_module("selenium.webdriver.support.ui")

pytestmark = pytest.mark.slow

PLAYER = ROOT / "docs" / "player"
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Player</title>
<body style="margin: 8px"><p>above</p><div class="player" data-recording="{}">fallback</div>
<p style="height: 2000px">below</p><script src="site/player.js" defer></script></body></html>"""
TABLE = yaml.safe_load((PLAYER / "words.yml").read_text(encoding="utf-8"))
WORDS, STORIES = TABLE["words"], TABLE["stories"]
PAIRS = TABLE["pairs"]
NAMES = sorted(path.stem for path in PLAYER.glob("recordings/*.json"))
ONE, THREE = (f"step-ranks-2-channels-1-bucket-cap-mb-{cap}" for cap in ("25", "0.01"))
RING, DIES = "all-reduce-ring-ranks-4", "failure-a-rank-dies-ranks-4"


def read(name):
    return json.loads((PLAYER / "recordings" / f"{name}.json").read_text())


# ---------------------------------------------------------------- pages, a browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """index.html, the same in Chinese, missing.html with a recording that is not there, and
    start.html, where the player is one of the things on the page and moves by itself."""
    folder = tmp_path_factory.mktemp("player")
    hooks.write_player(folder / "site")
    (folder / "index.html").write_text(PAGE.format(ONE))
    (folder / "zh.html").write_text(PAGE.format(ONE).replace('lang="en"', 'lang="zh-CN"'))
    (folder / "missing.html").write_text(PAGE.format("nothing"))
    small = PAGE.format(ONE).replace("data-recording", "data-small data-moves data-recording")
    (folder / "start.html").write_text(small)
    return folder


@pytest.fixture(scope="module", params=["http", "file"])
def site(request, folder):
    """Where the pages are: an address that a file name can follow."""
    if request.param == "file":
        yield folder.as_uri() + "/"
        return
    with served(folder) as address:
        yield address + "/"


class Browser:
    """A browser on a page with a player; css is looked up in the player."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, width=1000):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")  # or a changed fragment would not load the page anew
        self.driver.get(address)
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, ".player .status, .failed"))

    def until(self, condition):
        return ui.WebDriverWait(self.driver, 60, 0.05).until(lambda _: condition())

    def find(self, css):
        return self.all(css)[0]

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, f".player {css}")

    def text(self, css):
        return self.find(css).text

    def follow(self, fragment):
        """As a click on a link to this fragment does."""
        self.script("location.hash = arguments[0]", fragment)
        self.until(lambda: self.fragment == fragment)

    def step(self):
        number, last = re.match(r"step (\d+) of (\d+)\b", self.status).groups()
        return int(number), int(last)

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def script(self, code, *values):
        return self.driver.execute_script(code, *values)

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


# ---------------------------------------------------------------- what it does


@NEEDS_BROWSER
def test_it_plays_to_the_end_and_can_be_paused(browser, site):
    browser.open(f"{site}index.html#recording={ONE}&step=28")
    (start, last), play = browser.step(), browser.find(".play")
    play.click()
    browser.until(lambda: browser.step()[0] > start)
    play.click()
    assert f"step={browser.step()[0]}" in browser.fragment
    play.click()
    browser.until(lambda: browser.step() == (last, last))
    browser.until(lambda: "Play" in play.accessible_name)
    assert float(browser.find(".cover").get_attribute("width")) < 20


@NEEDS_BROWSER
def test_steps_by_button_key_slider_and_place(browser, site):
    browser.open(f"{site}index.html")
    assert browser.text(".status") == "step 0 of 36: the beginning"
    browser.find(".forward").click()
    browser.find(".forward").click()
    browser.find(".back").click()
    _, last = browser.step()
    assert browser.step() == (1, last)
    browser.script("window.turned = []; addEventListener('keydown', (e) => turned.push(e.key))")
    browser.script("arguments[0].focus()", browser.find(".stage"))
    right, left = Keys.ARROW_RIGHT, Keys.ARROW_LEFT
    for key, wanted in ((right, 2), (left, 1), (Keys.END, last), (left, last - 1), (Keys.HOME, 0)):
        browser.press(key)
        assert browser.step() == (wanted, last)
    assert browser.script("return turned") == [], "a theme turns pages with the arrow keys"
    set_range = "arguments[0].value = 12; arguments[0].dispatchEvent(new Event('input'))"
    browser.script(set_range, browser.find("input[type=range]"))
    assert browser.step() == (12, last)
    webdriver.ActionChains(browser.driver).move_to_element_with_offset(
        browser.find(".lanes"), 400, 0
    ).click().perform()
    assert browser.step()[0] > 12
    browser.find(".steps summary").click()
    browser.until(lambda: len(browser.all("tbody tr")) == last)
    browser.find("tbody tr:nth-child(9) button").click()
    assert browser.step() == (9, last) and browser.text("tr[aria-current] td").strip() == "9"


@NEEDS_BROWSER
def test_the_menu_the_address_and_the_way_back(browser, site):
    browser.open(f"{site}index.html")
    assert browser.shows(ONE) and "all of it is exposed" in browser.text(".conclusion")
    ui.Select(browser.find(".menu")).select_by_visible_text(read(THREE)["title"])
    browser.until(lambda: browser.shows(THREE))
    assert "3 buckets: the all-reduce of 2 of them" in browser.text(".conclusion")
    browser.find(".forward").click()
    browser.until(lambda: browser.fragment == f"recording={THREE}&step=1")
    there = browser.text(".status")
    browser.open(f"{site}index.html#{browser.fragment}")
    assert browser.text(".status") == there and browser.shows(THREE)
    browser.follow(f"recording={DIES}&step={quote('rank 1 dies')}")
    browser.until(lambda: "rank 1 dies: SIGKILL" in browser.text(".status"))
    browser.driver.back()
    browser.until(lambda: browser.shows(THREE) and browser.step()[0] == 1)
    browser.follow("recording=nothing&step=5")
    browser.until(lambda: browser.text(".hint") == "There is no recording nothing.")


@NEEDS_BROWSER
def test_an_all_reduce_ends_with_all_chunks_on_all_ranks(browser, site):
    browser.open(f"{site}index.html#recording={RING}&step=0")
    held = "return [...document.querySelectorAll('.slot.on text')].map(e => e.textContent).join('')"
    assert browser.script(held) == "0000111122223333" and not browser.all(".frame.whole")
    browser.find(".forward").click()
    assert "sends chunk" in browser.text(".status") and len(browser.all(".pill.flying")) == 1
    browser.script("arguments[0].focus()", browser.find(".stage"))
    browser.press(Keys.END)
    assert browser.script(held) == 16 * "0123" and len(browser.all(".frame.whole")) == 16
    assert "Each rank sends 7,200,000 bytes, 1.50 times" in browser.text(".conclusion")


@NEEDS_BROWSER
@pytest.mark.parametrize("name", [*NAMES, *PAIRS])
def test_every_recording_plays_on_a_telephone(browser, folder, name):
    browser.open(f"{folder.as_uri()}/index.html#recording={name}&step=99999", width=420)
    number, last = browser.step()
    assert number == last > 3 and browser.shows(name) and browser.text(".hint") == ""
    browser.find(".steps summary").click()
    beyond = """return [...document.querySelectorAll('.player *')].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > 420 || box.left < 0);
    }).map((element) => element.outerHTML)"""
    assert browser.script(beyond) == []


@NEEDS_BROWSER
def test_a_dark_theme_and_reduced_motion(browser, folder):
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    try:
        browser.open(f"{folder.as_uri()}/index.html")
        paper = "return getComputedStyle(document.querySelector('.player')).backgroundColor"
        light = browser.script(paper)
        browser.script("document.documentElement.dataset.theme = 'dark'")
        assert light == "rgb(255, 255, 255)" and browser.script(paper) != light
        browser.find(".play").click()
        browser.until(lambda: browser.step()[0] >= 4)  # no event in the next three seconds
        now = browser.find(".lanes .now").get_attribute("d")
        assert now in {browser.find(".lanes .now").get_attribute("d") for _ in range(3)}
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@NEEDS_BROWSER
def test_what_is_missing_is_one_line(browser, tmp_path, folder):
    browser.open(f"{folder.as_uri()}/missing.html")
    assert browser.text("p") == "There is no recording nothing."
    hooks.write_player(tmp_path / "site")
    (tmp_path / "site/recordings.js").unlink()
    (tmp_path / "index.html").write_text(PAGE.format(ONE))
    browser.open((tmp_path / "index.html").as_uri())
    assert browser.text("p").startswith("The recordings cannot be loaded: recordings.js is not")
    browser.driver.get_log("browser")  # the browser itself reports the missing file


# ---------------------------------------------------------------- the story


@NEEDS_BROWSER
@pytest.mark.parametrize("kind", STORIES)
def test_next_leads_through_the_story_without_scrolling(browser, folder, kind):
    browser.open(f"{folder.as_uri()}/index.html#recording={STORIES[kind][0][0]}&step=0", width=420)
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    place = "return [scrollY, document.querySelector('.next').getBoundingClientRect().top]"
    places = []
    try:
        for number, (name, words, english, _) in enumerate(STORIES[kind], 1):
            browser.until(lambda english=english: browser.text(".tale") == english)
            assert browser.text(".place") == f"{number} of {len(STORIES[kind])}"
            assert browser.shows(name) and words in browser.status
            places.append(browser.script(place))
            if number < len(STORIES[kind]):
                browser.find(".next").click()
        assert not browser.find(".next").is_enabled()
        assert len({scrolled for scrolled, _ in places}) == 1, "the page has jumped"
        assert max(top for _, top in places) < 900 - 40, "next is out of sight"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@NEEDS_BROWSER
def test_a_recording_amid_the_story_begins_with_its_own_frame(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html#recording={THREE}&step=0")
    first = next(frame for frame in STORIES["step"] if frame[0] == THREE)
    assert browser.text(".tale") == first[2]
    browser.find(".next").click()
    browser.until(lambda: first[1] in browser.status)
    assert browser.shows(THREE) and browser.text(".tale") == first[2]


@NEEDS_BROWSER
def test_next_moves_the_picture(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    browser.find(".next").click()
    browser.until(lambda: "forward begins" in browser.status)
    browser.find(".next").click()
    assert "Pause" in browser.find(".play").accessible_name
    browser.until(lambda: "linear.bias is ready" in browser.status)
    browser.until(lambda: "Play" in browser.find(".play").accessible_name)


@NEEDS_BROWSER
def test_the_first_sight_is_in_full_colour(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    assert browser.find(".cover").get_attribute("visibility") == "hidden"
    browser.find(".forward").click()
    assert browser.find(".cover").get_attribute("visibility") == "visible"


@NEEDS_BROWSER
def test_it_moves_by_itself_unless_the_reader_wants_no_motion(browser, folder):
    browser.open(f"{folder.as_uri()}/start.html")
    browser.until(lambda: browser.step()[0] > 3)
    browser.find(".play").click()
    assert browser.fragment == "" and not browser.find(".menu").is_displayed()
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    try:
        browser.open(f"{folder.as_uri()}/start.html")
        assert browser.step()[0] == 0 and "Play" in browser.find(".play").accessible_name
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@NEEDS_BROWSER
def test_the_controls_stay_in_sight_of_a_high_picture_only(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    sticky = "return getComputedStyle(document.querySelector('.deck')).position"
    assert browser.script(sticky) == "static"
    size = {"width": 1000, "height": 300, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.follow(f"recording={RING}&step=0")
    browser.until(lambda: browser.script(sticky) == "sticky")


@NEEDS_BROWSER
def test_ranks_that_share_cores_show_no_times(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html#recording={ONE}&step=12")
    text = browser.text(".stage") + browser.text(".status") + browser.text(".conclusion")
    assert not re.search(r"\d m?s\b", text) and "so no times are shown" in browser.text(".about")
    browser.follow("recording=failure-slow-rank-ranks-4&step=3")
    browser.until(lambda: re.match(r"step 3 of \d+, \d\.\d+ s: ", browser.status))
    assert browser.text(".conclusion") == (
        "Rank 1 is the cause, without any error: in every step it is 0.3 s late, and the others "
        "wait 0.2 to 0.3 s for it."
    )


@NEEDS_BROWSER
def test_waiting_and_sending_have_two_colours(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    legend = browser.text(".legend")
    assert "waits for a slower rank" in legend and "only waits for the all-reduce" in legend


# ---------------------------------------------------------------- two over one another


def bars(browser, what):
    """The bars of a lane's kind, from top to bottom: [left, right, top]"""
    code = """return [...document.querySelectorAll('.lanes rect')]
        .filter((bar) => bar.getAttribute('style')?.includes(arguments[0] + ')'))
        .map((bar) => bar.getBoundingClientRect())
        .map(({left, right, top}) => [left, right, top])"""
    return sorted(browser.script(code, what), key=lambda bar: (bar[2], bar[0]))


@NEEDS_BROWSER
def test_one_bucket_over_three(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html#recording=compare-buckets&step=0")
    late = []
    for name in PAIRS["compare-buckets"]:
        rank = read(name)["ranks"][0]
        last = max(mark["at"] for mark in rank["marks"])
        late.append(sum(of["bytes"] for of in rank["buckets"] if of["arrived"] > last))
    assert late == [116136, 1920]
    assert browser.text(".conclusion") == (
        "When the last gradient is ready, 116,136 bytes are still to be averaged with one bucket "
        "(cap 25), 1,920 with three (cap 0.01)."
    )
    (left, right, _), (small_left, small_right, _) = bars(browser, "#player-exposed")
    assert left == small_left and right - left > 20 * (small_right - small_left)
    backward = bars(browser, "--backward")
    assert backward[0][:2] == backward[1][:2], "on one axis"
    sent = bars(browser, "--all-reduce")
    assert len(sent) == 4 and all(one[0] < left for one in sent[1:3]), "beside backward"
    assert "widths are no times" in browser.text(".about")


@NEEDS_BROWSER
def test_the_ring_over_the_naive_way(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html#recording=compare-all-reduces&step=0")
    assert "1.50 times the vector in the ring" in browser.text(".conclusion")
    assert "6.00 times through rank 0" in browser.text(".conclusion")
    sends = bars(browser, "--send")
    ring, naive = sends[:24], sends[24:]
    left = min(bar[0] for bar in sends)
    assert len({bar[2] for bar in ring}) == 4 and len(naive) == 6
    ends = [max(bar[1] for bar in bars) - left for bars in (ring, naive)]
    assert abs(ends[1] / ends[0] - 4) < 0.05
    receives = bars(browser, "--receive")
    turns = sorted(bar[:2] for bar in naive)
    assert all(one[1] <= other[0] + 1 for one, other in zip(turns, turns[1:])), "in turn"
    assert len(receives) == 6
    browser.script("arguments[0].focus()", browser.find(".stage"))
    browser.press(Keys.END)
    assert "has finished" in browser.status


@NEEDS_BROWSER
def test_a_focus_ring_is_not_cut_off(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    browser.find(".menu").send_keys(Keys.TAB)  # a key: else the browser draws no ring
    browser.script("arguments[0].focus()", browser.find(".stage"))
    offset = "return getComputedStyle(document.activeElement).outlineOffset"
    assert browser.script(offset) == "-3px", "below the stage the deck would cover it"


# ---------------------------------------------------------------- two languages


@NEEDS_BROWSER
@pytest.mark.parametrize("name", [ONE, RING, DIES, *PAIRS])
def test_on_a_chinese_page_it_speaks_chinese(browser, folder, name):
    browser.open(f"{folder.as_uri()}/zh.html#recording={name}&step=9")
    for part in (".tale", ".next", ".status", ".conclusion", ".legend", ".about"):
        assert re.search("[\u4e00-\u9fff]", browser.text(part)), part
    frame = next(frame for story in STORIES.values() for frame in story if frame[0] == name)
    browser.follow(f"recording={name}&step={quote(frame[1] or '0')}")
    browser.until(lambda: browser.text(".tale") == frame[3])


def test_the_table_of_words_is_whole():
    for key, (english, chinese) in WORDS.items():
        places = [set(re.findall(r"\{\w+\}", text)) - {"{title}"} for text in (english, chinese)]
        assert places[1] == places[0] or key.startswith("title-"), key
    used = set(re.findall(r'say\(\s*(?:[^"()]*\? )?"([\w-]+)"', code()))
    assert len(used) > 25 and used <= set(WORDS), used - set(WORDS)


def code():
    return "".join(path.read_text() for path in sorted(PLAYER.glob("*.js")))


def test_the_scripts_stay_small():
    assert len(code().splitlines()) <= 1020


# ---------------------------------------------------------------- what the page says


@NEEDS_BROWSER
def test_the_links_of_the_page_lead_to_steps(browser, folder):
    links = re.findall(r'<a href="#([^"]+)"', (PLAYER / "index.md").read_text())
    assert len(links) >= 6
    browser.open(f"{folder.as_uri()}/index.html")
    for link in links:
        link = link.replace("&amp;", "&")
        words = re.search("step=(.*)", link)[1].replace("+", " ")
        expected = "the beginning" if words == "0" else words
        browser.follow(link)
        browser.until(lambda expected=expected: expected in browser.status)
        assert browser.text(".hint") == ""


def test_what_the_page_says_of_bytes_and_failures():
    sent = {way: [0] * 4 for way in ("ring", "naive", "tree")}
    for way, of in sent.items():
        recorded = read(f"all-reduce-{way}-ranks-4")
        for message in recorded["messages"]:
            of[message["from"]] += message["bytes"] / recorded["elements"] / 4
    assert sent["ring"] == [1.5] * 4 and sum(sent["naive"]) == sum(sent["tree"]) == 6
    assert max(sent["naive"]) == sent["naive"][0] == 3 > max(sent["tree"]) > max(sent["ring"])
    texts = {}
    for case in ("a-rank-dies", "a-rank-leaves-early", "slow-rank"):
        ranks = read(f"failure-{case}-ranks-4")["ranks"]
        texts[case] = [" ".join(mark["text"] for mark in rank["marks"]) for rank in ranks]
    closed, others = re.compile("Connection (closed|reset) by peer"), (0, 2, 3)
    assert all(closed.search(texts["a-rank-dies"][rank]) for rank in others)
    ends = [texts["a-rank-leaves-early"][rank] for rank in others]
    assert any("Timed out waiting" in end for end in ends)
    assert all("Timed out waiting" in end or closed.search(end) for end in ends)
    assert "exit code 0" in texts["a-rank-leaves-early"][1] and texts["slow-rank"] == [""] * 4

"""The player of recorded runs, in a browser: from a server and from file://, on small recordings.

The recordings here are made up, so that a test knows each step of them; the last tests take the
committed ones.
"""

import functools
import importlib
import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from conftest import NEEDS_BROWSER, ROOT, served

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

from_scratch = importlib.import_module("05_multinode.from_scratch")

PLAYER = ROOT / "docs" / "player"
COMMITTED = sorted(PLAYER.glob("recordings/*-*.json"))
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Player</title>
<body style="margin: 8px">{}<script src="site/player.js" defer></script></body></html>"""
ONE, TWO, FOUR = "one-bucket", "two-buckets", "four-ranks"


# ---------------------------------------------------------------- recordings, pages, a browser


def recording(name, kind, choices, ranks, end, **rest):
    about = {"torch": "2", "backend": "gloo", "machine": "paper", "date": "today", "command": "-"}
    common = {"format": 1, "name": name, "kind": kind, "title": f"Title of {name}", "end": end}
    return common | {"choices": choices, "about": about, "ranks": ranks} | rest


def step(name, world_size, cap, buckets):
    """A step in which gradient i of 4 is ready 1000 us after the one before."""
    ranks = []
    for rank in range(world_size):
        ready = [3000 + 1000 * i + 100 * rank for i in range(4)]
        last, slowest = ready[-1], 100 * (world_size - 1 - rank)
        marks = [
            {"at": at, "what": "gradient", "parameter": f"p{i}", "bytes": 4, "bucket": bucket}
            for bucket, of in enumerate(buckets)
            for i, at in ((i, ready[i]) for i in of)
        ]
        full = [(bucket, of, ready[of[-1]] + 10) for bucket, of in enumerate(buckets)]
        sent = [
            {"bucket": bucket, "parameters": [f"p{i}" for i in of], "bytes": 4 * len(of)}
            | {"left": left, "joined": left + slowest, "arrived": left + slowest + 800}
            for bucket, of, left in full
        ]
        moments = [0, 50, 2000 + rank, last, sent[-1]["arrived"] + 5, 9000]
        names = ("data", "forward", "backward", "exposed", "optimizer")
        spans = [{"what": w, "from": a, "to": b} for w, a, b in zip(names, moments, moments[1:])]
        ranks.append({"rank": rank, "spans": spans, "marks": marks, "buckets": sent})
    choices = {"ranks": world_size, "channels": 1, "bucket_cap_mb": cap}
    return recording(name, "step", choices, ranks, 9000)


def ring(world_size):
    """The ring's messages as from_scratch.py's simulation has them, one after the other."""
    vectors = [torch.full((world_size,), 16**rank) for rank in range(world_size)]
    states, messages = list(from_scratch.simulate(vectors)), []
    schedules = [from_scratch.schedule(rank, world_size) for rank in range(world_size)]
    for i, steps in enumerate(zip(*schedules)):
        for rank, (phase, chunk, _) in enumerate(steps):
            sent, value = 100 * (i * world_size + rank), states[i][rank][chunk].item()
            contents = [value // 16**of % 16 for of in range(world_size)]
            message = {"from": rank, "to": (rank + 1) % world_size, "chunk": chunk, "bytes": 4000}
            times = {"phase": phase, "sent": sent, "received": sent + 90, "contents": contents}
            messages.append(message | times)
    cut = {"elements": 1000 * world_size, "end": messages[-1]["received"], "messages": messages}
    cut["chunks"] = [[1000 * i, 1000 * (i + 1)] for i in range(world_size)]
    ranks = [{"rank": rank, "spans": [], "marks": []} for rank in range(world_size)]
    choices = {"way": "ring", "ranks": world_size}
    return recording(f"ring-{world_size}", "all_reduce", choices, ranks, **cut)


def failure():
    spans = [[("compute", 0, 900), ("wait", 900, 5000)], [("compute", 0, 700), ("gone", 700, 5000)]]
    ranks = [
        {"rank": rank, "spans": [{"what": w, "from": a, "to": b} for w, a, b in of], "marks": []}
        for rank, of in enumerate(spans)
    ]
    ranks[1]["marks"] = [{"at": 700, "what": "dies", "text": "SIGKILL"}]
    ranks[0]["marks"] = [{"at": 4900, "what": "error", "text": "Connection closed by peer"}]
    return recording("dies", "failure", {"case": "a rank dies", "ranks": 2}, ranks, 5000)


def write_pages(folder, recordings, index=None):
    """index.html and two.html (two players), with the player's files as the site has them."""
    (folder / "site").mkdir(parents=True)
    for name in ("player.js", "player.css"):
        shutil.copy(PLAYER / name, folder / "site")
    keys = ("name", "kind", "title", "choices")
    index = index or [{key: r[key] for key in keys} for r in recordings if "kind" in r]
    library = {f"{r['name']}.json": r for r in recordings}
    library["index.json"] = [entry | {"file": f"{entry['name']}.json"} for entry in index]
    (folder / "site/recordings.js").write_text(f"window.recordings = {json.dumps(library)};\n")
    players = [
        f'<div class="player" data-recording="{name}">fallback</div>' for name in (ONE, "ring-4")
    ]
    (folder / "index.html").write_text(PAGE.format(players[0]))
    (folder / "two.html").write_text(PAGE.format("\n".join(players)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recordings = [step(ONE, 2, 25, [[0, 1, 2, 3]]), step(TWO, 2, 0.01, [[0], [1, 2, 3]])]
    recordings += [step(FOUR, 4, 25, [[0, 1, 2, 3]]), ring(2), ring(4), failure()]
    return write_pages(tmp_path_factory.mktemp("player"), recordings)


@pytest.fixture(scope="module", params=["http", "file"])
def site(request, folder):
    """Where the pages are: an address that a file name can follow."""
    if request.param == "file":
        yield folder.as_uri() + "/"
        return
    with served(folder) as address:
        yield address + "/"


class Browser:
    """A browser on a page with players; css of `find` and `text` is looked up in the given one."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, width=1000, height=900):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")  # or a changed fragment would not load the page anew
        self.driver.get(address)
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, ".player .status, .failed"))

    def until(self, condition):
        return WebDriverWait(self.driver, 60, 0.05).until(lambda _: condition())

    def find(self, css, player=1):
        return self.all(css, player)[0]

    def all(self, css, player=1):
        root = self.driver.find_elements(By.CSS_SELECTOR, ".player")[player - 1]
        return root.find_elements(By.CSS_SELECTOR, css)

    def follow(self, fragment):
        """As a click on a link to this fragment does."""
        self.script("location.hash = arguments[0]", fragment)
        self.until(lambda: self.fragment == fragment)

    def text(self, css, player=1):
        return self.find(css, player).text

    def step(self, player=1):
        number, _, last = re.match(
            r"step (\d+) (of) (\d+), ", self.text(".status", player)
        ).groups()
        return int(number), int(last)

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def choose(self, menu, option):
        Select(self.find(f"select[name={menu}]")).select_by_visible_text(option)

    def script(self, code, *values):
        return self.driver.execute_script(code, *values)

    def shows(self, title):
        return self.text(".title") == title

    @property
    def fragment(self):
        return self.driver.current_url.partition("#")[2]


@pytest.fixture
def browser(chromium):
    yield Browser(chromium)
    errors = [entry["message"] for entry in chromium.get_log("browser")]
    assert errors == []


# ---------------------------------------------------------------- without a browser


def test_it_is_small_and_asks_nothing_of_others():
    code = (PLAYER / "player.js").read_bytes() + (PLAYER / "player.css").read_bytes()
    assert len(code) < 60_000
    addresses = set(re.findall(rb"https?://[^\"' ]+", code))
    assert addresses == {b"http://www.w3.org/1999/xhtml", b"http://www.w3.org/2000/svg"}


# ---------------------------------------------------------------- playing and stepping


@NEEDS_BROWSER
def test_it_plays_to_the_end_and_can_be_paused(browser, site):
    browser.open(f"{site}index.html#recording={ONE}&step=14")
    assert browser.step() == (14, 24) and "Play" in browser.find(".play").accessible_name
    Select(browser.find(".speed")).select_by_value("4")
    browser.find(".play").click()
    browser.until(lambda: browser.step()[0] > 14)
    browser.find(".play").click()
    paused, _ = browser.step()
    assert f"step={paused}" in browser.fragment
    browser.find(".play").click()
    browser.until(lambda: browser.step() == (24, 24))
    browser.until(lambda: "Play" in browser.find(".play").accessible_name)
    assert float(browser.find(".lanes clipPath rect").get_attribute("width")) > 500
    Select(browser.find(".speed")).select_by_value("0.25")
    browser.find(".play").click()  # at the end it begins anew
    assert browser.step()[0] < 14


@NEEDS_BROWSER
def test_steps_and_what_they_say(browser, site):
    browser.open(f"{site}index.html")
    back, forward = browser.find(".back"), browser.find(".forward")
    seen = [browser.text(".status")]
    for _ in range(24):
        forward.click()
        seen.append(browser.text(".status"))
    forward.click()
    assert browser.step() == (24, 24)
    assert seen[0] == "step 0 of 24, 0.000 ms: the beginning"
    ready = "rank 1: the gradient of p2 is ready; bucket 0 now has 3 of 4"
    assert f"step 12 of 24, 5.100 ms: {ready}" in seen
    starts = "rank 0: bucket 0 is full (16 bytes); its all-reduce starts, and waits 0.100 ms for"
    assert any(starts in text for text in seen)
    assert any("rank 1: bucket 0 is averaged, 0.800 ms after its" in text for text in seen)
    back.click()
    assert browser.text(".status") == seen[23]
    labels = [label.text for label in browser.all(".lanes .quiet")]
    assert labels == ["bucket 0: averaged"] * 2


@NEEDS_BROWSER
def test_scrubbing_and_pointing_at_a_moment(browser, site):
    browser.open(f"{site}index.html")
    past = "return parseFloat(document.querySelector('.lanes clipPath rect').getAttribute('width'))"
    assert browser.script(past) == 0
    set_range = "arguments[0].value = 12; arguments[0].dispatchEvent(new Event('input'))"
    browser.script(set_range, browser.find("input[type=range]"))
    assert browser.step() == (12, 24)
    assert browser.find("input[type=range]").get_attribute("aria-valuetext").startswith("step 12")
    middle = browser.script(past)
    webdriver.ActionChains(browser.driver).move_to_element_with_offset(
        browser.find(".lanes"), 300, 0
    ).click().perform()
    assert browser.step()[0] > 12 and browser.script(past) > middle > 0


@NEEDS_BROWSER
def test_the_keyboard(browser, site):
    browser.open(f"{site}index.html")
    browser.script("arguments[0].focus()", browser.find(".stage"))
    right, left = Keys.ARROW_RIGHT, Keys.ARROW_LEFT
    moves = ((right, 1), (right, 2), (left, 1), (Keys.END, 24), (left, 23), (Keys.HOME, 0))
    for key, expected in moves:
        browser.press(key)
        assert browser.step() == (expected, 24)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.script(outline) == "solid"
    browser.press(Keys.SPACE)
    browser.until(lambda: browser.step()[0] > 0)
    browser.press(Keys.SPACE)
    assert "Play" in browser.find(".play").accessible_name
    browser.press(Keys.HOME)
    browser.script("arguments[0].focus()", browser.find(".forward"))
    browser.press(Keys.SPACE)  # on a button it presses that button
    assert browser.step() == (1, 24) and "Play" in browser.find(".play").accessible_name
    browser.script("arguments[0].focus()", browser.find("select[name=ranks]"))
    browser.press(Keys.END)  # in a menu the keys are the menu's
    browser.until(lambda: "four-ranks" in browser.text(".title"))


@NEEDS_BROWSER
def test_keys_of_the_player_do_not_turn_the_pages_of_a_theme(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    browser.script("window.turned = []; addEventListener('keydown', (e) => turned.push(e.key))")
    browser.script("arguments[0].focus()", browser.find(".stage"))
    browser.press(Keys.ARROW_RIGHT, Keys.SPACE, Keys.SPACE, "x")
    assert browser.script("return turned") == ["x"]


@NEEDS_BROWSER
def test_the_list_of_all_steps(browser, site):
    browser.open(f"{site}index.html")
    browser.find(".steps summary").click()
    browser.until(lambda: len(browser.all("tbody tr")) == 24)
    assert "4.000 ms rank 0: the gradient of p1 is ready" in browser.text("tbody")
    browser.find("tbody tr:nth-child(9) button").click()
    assert browser.step() == (9, 24)
    assert browser.text("tr[aria-current] td").strip() == "9"


# ---------------------------------------------------------------- recordings and menus


@NEEDS_BROWSER
def test_menus_change_the_picture_and_name_the_nearest_recording(browser, site):
    browser.open(f"{site}index.html")
    assert [label.text for label in browser.all(".lanes .rank")] == ["rank 0", "rank 1"]
    assert "No overlap: all 4 gradients (16 bytes) fit into one bucket" in browser.text(".summary")
    browser.choose("bucket_cap_mb", "0.01 MiB")
    assert len(browser.all(".lanes .quiet")) == 4 and browser.text(".hint") == ""
    assert "Overlap: bucket_cap_mb=0.01 makes 2 buckets." in browser.text(".summary")
    browser.choose("ranks", "4")
    assert len(browser.all(".lanes .rank")) == 4 and "four-ranks" in browser.text(".title")
    assert "instead of bucket_cap_mb 0.01 MiB this is bucket_cap_mb 25" in browser.text(".hint")
    browser.choose("show", "an all-reduce")
    assert browser.text(".title") == "Title of ring-4" and browser.text(".hint") == ""
    browser.choose("ranks", "2")
    assert len(browser.all(".circle .box")) == 2


@NEEDS_BROWSER
def test_the_way_from_one_bucket_to_several(browser, site):
    browser.open(f"{site}index.html#recording={FOUR}&step=999")
    exposed = [li.text.replace("\xa0", " ") for li in browser.all(".summary li")]
    assert exposed[0] == "rank 0: exposed 1.11 ms of 9.00 ms (12 %), overlap 0 %"
    browser.find(".summary .try").click()
    assert "two-buckets" in browser.text(".title") and browser.step() == (28, 28)
    assert "overlap 50" in browser.text(".summary li")
    browser.find(".summary .try").click()
    assert "one-bucket" in browser.text(".title")


@NEEDS_BROWSER
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_chunks_of_an_all_reduce(browser, folder, world_size):
    browser.open(f"{folder.as_uri()}/index.html#recording=ring-{world_size}&step=0")
    held = "return [...document.querySelectorAll('.slot.on text')].map(e => e.textContent).join('')"
    own = "".join(str(rank) * world_size for rank in range(world_size))
    assert browser.script(held) == own and not browser.all(".frame.whole")
    browser.find(".forward").click()
    sends = "rank 0 sends chunk 0 to rank 1, 4,000 bytes with the sum of rank 0"
    assert sends in browser.text(".status")
    (pill,) = browser.all(".pill.flying")
    assert pill.text.split("\n") == ["chunk 0", "4,000 B"]
    assert browser.text(".circle .quiet.middle") == "sent 4,000 bytes"
    browser.find(".forward").click()
    assert len(browser.script(held)) == len(own) + 1 and not browser.all(".pill.flying")
    browser.press(Keys.END)
    assert browser.script(held) == "".join(map(str, range(world_size))) * world_size**2
    assert len(browser.all(".frame.whole")) == world_size**2
    total = f"sent {4000 * 2 * (world_size - 1):,} bytes"
    assert [e.text for e in browser.all(".circle .quiet.middle")] == [total] * world_size


@NEEDS_BROWSER
def test_a_failure_shows_its_messages_when_they_come(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html#recording=dies&step=0")
    assert len(browser.all(".notes .future")) == 2
    browser.script("arguments[0].focus()", browser.find(".stage"))
    browser.press(*[Keys.ARROW_RIGHT] * 3)
    assert browser.text(".status").endswith("rank 1 dies: SIGKILL")
    assert [item.text for item in browser.all(".notes .future")] == [
        "4.900 ms, rank 0 gets an error: Connection closed by peer"
    ]
    browser.press(Keys.END)
    assert not browser.all(".notes .future")


# ---------------------------------------------------------------- addresses


@NEEDS_BROWSER
def test_an_address_restores_recording_and_step(browser, site):
    browser.open(f"{site}index.html")
    browser.choose("bucket_cap_mb", "0.01 MiB")
    browser.script("arguments[0].focus()", browser.find(".stage"))
    browser.press(*[Keys.ARROW_RIGHT] * 5)
    browser.until(lambda: browser.fragment == f"recording={TWO}&step=5")
    there = browser.text(".status")
    browser.open(f"{site}index.html#{browser.fragment}")
    assert browser.text(".status") == there and "two-buckets" in browser.text(".title")
    words = quote("the gradient of p3")
    browser.open(f"{site}index.html#recording={TWO}&step={words}")
    assert "rank 0: the gradient of p3 is ready" in browser.text(".status")
    browser.open(f"{site}index.html#recording=nothing&step=5")
    assert browser.text(".hint") == "There is no recording nothing."
    assert browser.step() == (0, 24)


@NEEDS_BROWSER
def test_back_goes_to_the_recording_before(browser, site):
    browser.open(f"{site}index.html")
    browser.find(".forward").click()
    browser.until(lambda: browser.fragment == f"recording={ONE}&step=1")
    browser.choose("bucket_cap_mb", "0.01 MiB")
    browser.choose("show", "a failure")
    assert browser.fragment == "recording=dies&step=0"
    browser.driver.back()
    browser.until(lambda: "two-buckets" in browser.text(".title"))
    browser.driver.back()
    browser.until(lambda: "one-bucket" in browser.text(".title") and browser.step() == (1, 24))
    browser.driver.forward()
    browser.until(lambda: "two-buckets" in browser.text(".title"))
    browser.open(f"{site}index.html")
    browser.choose("show", "a failure")
    browser.driver.back()
    browser.until(lambda: browser.fragment == "" and "one-bucket" in browser.text(".title"))


@NEEDS_BROWSER
def test_of_two_players_the_one_in_use_has_the_address(browser, site):
    browser.open(f"{site}two.html")
    assert browser.fragment == ""
    browser.find(".forward", player=2).click()
    browser.until(lambda: browser.fragment == "player=2&recording=ring-4&step=1")
    assert browser.step(1) == (0, 24) and browser.step(2) == (1, 48)
    browser.open(f"{site}two.html#{browser.fragment}")
    assert browser.step(1) == (0, 24) and browser.step(2) == (1, 48)
    browser.find(".forward", player=1).click()
    browser.until(lambda: browser.fragment == f"recording={ONE}&step=1")
    assert browser.step(2) == (1, 48)


@NEEDS_BROWSER
def test_copy_link_writes_the_address(browser, site):
    browser.open(f"{site}index.html")
    browser.find(".copy").click()
    browser.until(lambda: browser.text(".copy") in ("Copied", "It is in the address bar"))
    assert browser.fragment == f"recording={ONE}&step=0"


# ---------------------------------------------------------------- screens, themes, broken files


@NEEDS_BROWSER
@pytest.mark.parametrize("name", [ONE, TWO, FOUR, "ring-2", "ring-4", "dies"])
def test_a_telephone_scrolls_only_down(browser, folder, name):
    browser.open(f"{folder.as_uri()}/index.html#recording={name}&step=999", width=420)
    browser.find(".steps summary").click()
    width = "return document.documentElement.scrollWidth"
    assert browser.script(width) <= 420
    beyond = """return [...document.querySelectorAll('.player *')].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width && (box.right > 420 || box.left < 0);
    }).map((element) => element.outerHTML)"""
    assert browser.script(beyond) == []


@NEEDS_BROWSER
def test_a_dark_theme_and_reduced_motion(browser, folder):
    browser.open(f"{folder.as_uri()}/index.html")
    paper = "return getComputedStyle(document.querySelector('.player')).backgroundColor"
    light = browser.script(paper)
    browser.script("document.documentElement.dataset.theme = 'dark'")
    assert light == "rgb(255, 255, 255)" and browser.script(paper) != light
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    try:
        browser.open(f"{folder.as_uri()}/index.html")
        browser.find(".play").click()
        browser.until(lambda: browser.step()[0] >= 3)
        now = browser.find(".lanes .now").get_attribute("d")
        assert now in {browser.find(".lanes .now").get_attribute("d") for _ in range(3)}
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def damaged():
    """(recording, what the player says of it)"""
    late, lost, old = (step(ONE, 2, 25, [[0, 1, 2, 3]]) for _ in range(3))
    late["ranks"][1]["buckets"][0]["arrived"] = 20
    lost.pop("end")
    old["format"] = 2
    early = ring(2) | {"name": ONE}
    early["messages"][1]["received"] = 0
    return {
        "late": (late, "bucket 0 of rank 1 arrives before it leaves"),
        "lost": (lost, "end is not a number of microseconds"),
        "old": (old, "its format is 2, this player knows 1"),
        "early": (early, "a message is received before it is sent"),
        "empty": ({"name": ONE}, "its format is undefined, this player knows 1"),
    }


@NEEDS_BROWSER
@pytest.mark.parametrize("case", ["late", "lost", "old", "early", "empty"])
def test_a_damaged_recording_is_one_line(browser, tmp_path, case):
    broken, reason = damaged()[case]
    index = [{"name": ONE, "kind": "step", "title": "", "choices": {}}]
    page = write_pages(tmp_path / "site", [broken, ring(4)], index) / "two.html"
    browser.open(page.as_uri())
    line = f"The recording {ONE} is damaged: {reason}."
    assert browser.text(".failed") == line
    assert browser.step(2) == (0, 48), "the other player plays"


@NEEDS_BROWSER
def test_a_missing_recording_and_missing_recordings_are_one_line(browser, tmp_path):
    page = write_pages(tmp_path / "site", [ring(4)]) / "index.html"
    browser.open(page.as_uri())
    assert browser.text("p") == f"There is no recording {ONE}."
    (tmp_path / "site/site/recordings.js").unlink()
    browser.open(page.as_uri())
    assert browser.text("p").startswith("The recordings cannot be loaded: recordings.js is not")
    browser.driver.get_log("browser")  # the browser itself reports the missing file


# ---------------------------------------------------------------- the committed recordings and page


NEEDS_RECORDINGS = pytest.mark.skipif(not COMMITTED, reason="no recordings in docs/player")


def read(name):
    return json.loads((PLAYER / "recordings" / f"{name}.json").read_text())


@NEEDS_RECORDINGS
def test_what_the_page_says_of_buckets_bytes_and_failures():
    convnet, capped, wider = (
        [
            len(bucket["parameters"])
            for bucket in read(f"step-ranks-2-channels-{of}")["ranks"][0]["buckets"]
        ]
        for of in ("1-bucket-cap-mb-25", "1-bucket-cap-mb-0.01", "4-bucket-cap-mb-0.2")
    )
    assert convnet == [10] and len(capped) == 3 and capped[0] == 2 and len(wider) > 1
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
    others = (0, 2, 3)
    closed = re.compile("Connection (closed|reset) by peer")
    assert all(closed.search(texts["a-rank-dies"][rank]) for rank in others)
    ends = [texts["a-rank-leaves-early"][rank] for rank in others]
    assert any("Timed out waiting" in end for end in ends)
    assert all("Timed out waiting" in end or closed.search(end) for end in ends)
    assert "exit code 0" in texts["a-rank-leaves-early"][1]
    assert texts["slow-rank"] == [""] * 4


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """The address of a page that plays the repository's recordings."""
    recordings = [read(path.stem) for path in COMMITTED]
    index = [entry | {"name": Path(entry["file"]).stem} for entry in read("index")]
    folder = write_pages(tmp_path_factory.mktemp("committed"), recordings, index)
    (first, *_) = re.findall(r'data-recording="([^"]+)"', (PLAYER / "index.md").read_text())
    page = f'<div class="player" data-recording="{first}"></div>'
    (folder / "index.html").write_text(PAGE.format(page))
    return f"{folder.as_uri()}/index.html"


@NEEDS_BROWSER
@NEEDS_RECORDINGS
def test_every_committed_recording_plays(browser, committed):
    browser.open(committed, width=420)
    for path in COMMITTED:
        title = read(path.stem)["title"]
        browser.follow(f"recording={path.stem}&step=99999")
        browser.until(functools.partial(browser.shows, title))
        number, last = browser.step()
        assert number == last > 3 and browser.text(".hint") == "", path
        assert browser.script("return document.documentElement.scrollWidth") <= 420, path
        if path.stem.startswith("all-reduce"):
            assert len(browser.all(".frame.whole")) == len(browser.all(".frame")), path


@NEEDS_BROWSER
@NEEDS_RECORDINGS
def test_the_links_of_the_page_lead_to_steps(browser, committed):
    links = re.findall(r'<a href="(#[^"]+)"', (PLAYER / "index.md").read_text())
    assert len(links) >= 6
    browser.open(committed)
    for link in links:
        link = link.replace("&amp;", "&")
        words = re.search("step=(.*)", link)[1].replace("+", " ")
        expected = "the beginning" if words == "0" else words
        browser.follow(link[1:])
        assert browser.text(".hint") == "" and expected in browser.text(".status"), link

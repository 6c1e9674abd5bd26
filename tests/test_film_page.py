"""The film of a run (`doctor speed --film`) in a browser, at two widths and on two grounds."""

import os
import re
import subprocess
import sys

import pytest
from browser import NEEDS_BROWSER
from conftest import ROOT

pytest.importorskip("selenium.webdriver")
pytestmark = [pytest.mark.slow, NEEDS_BROWSER]

COMMAND = "torchrun --standalone --nproc-per-node 2 doctor/tests/one_cost.py straggler"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run in which rank 1 sleeps for 50 ms in each step."""
    path = tmp_path_factory.mktemp("film") / "run.html"
    command = [sys.executable, "-m", "doctor", "speed", "--film", path, *COMMAND.split()]
    programs = os.path.dirname(sys.executable)  # torchrun is that of the tests
    env = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    options = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run(command, **options)
    assert done.returncode == 0 and "Rank 0 waited" in done.stdout, done
    return path


@pytest.fixture
def opened(chromium, page, request):
    """The page in a browser. The test's parameter is the width and the ground."""
    width, ground = request.param
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": ground}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    chromium.get(page.as_uri())
    yield chromium
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert [entry["message"] for entry in chromium.get_log("browser")] == []


SIZES = [(1000, "light"), (390, "dark")]


def contrast(one, other):
    """Of two colours as a browser writes them, "rgb(31, 35, 40)", by the formula of WCAG."""
    lights = []
    for color in (one, other):
        light = 0.0
        for value, weight in zip(re.findall(r"\d+", color), (0.2126, 0.7152, 0.0722)):
            part = int(value) / 255
            linear = part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            light += weight * linear
        lights.append(light + 0.05)
    return max(lights) / min(lights)


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_all_words_can_be_read(opened):
    """One of the two pictures is shown, nothing is wider than the window, no word is small."""
    shown = [one for one in opened.find_elements("css selector", "svg") if one.is_displayed()]
    assert len(shown) == 1
    too_wide = "return document.documentElement.scrollWidth > innerWidth"
    assert not opened.execute_script(too_wide)
    paper = shown[0].find_element("css selector", ".paper").value_of_css_property("fill")
    scale = shown[0].size["width"] / float(shown[0].get_dom_attribute("viewBox").split()[2])
    texts = shown[0].find_elements("css selector", "text")
    assert len(texts) > 10
    for text in texts:
        size = float(text.value_of_css_property("font-size").removesuffix("px"))
        assert scale * size >= 9, text.text
        if "in " not in text.get_attribute("class"):  # it stands in a bar
            assert contrast(text.value_of_css_property("fill"), paper) > 4.5, text.text


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_a_click_on_a_bar_says_what_it_is_and_the_film_plays(opened):
    bars = opened.find_elements("css selector", "rect.wait")
    wide = [bar for bar in bars if bar.is_displayed() and bar.size["width"] > 50]
    wide[-1].click()
    assert re.search(r"rank 0: waits for rank 1, \d\d\.\d ms", text_of(opened, "#now"))
    before = text_of(opened, "#moment")
    opened.find_element("css selector", "#play").click()
    for _ in range(100):
        if text_of(opened, "#moment") != before:
            break
    assert text_of(opened, "#moment") != before
    assert text_of(opened, "#play") == "Pause"
    opened.find_element("css selector", "#play").click()
    assert text_of(opened, "#play") == "Play"


def text_of(driver, css):
    return driver.find_element("css selector", css).text

"""The pictures that move: they have the notebooks' data, and everybody can see and read them."""

import re
import xml.dom.minidom
from importlib import import_module

import nbformat
import pytest
import torch
from browser import NEEDS_BROWSER
from conftest import ROOT

moving = import_module("notebooks.pictures.moving")
CHINESE = import_module("notebooks.pictures.chinese").CHINESE
svg = import_module("notebooks.pictures.svg")
NAMES = sorted(moving.FILES)
# What a Chinese picture has in English: names of programs, variables, errors and PyTorch's terms.
NOT_TRANSLATED = r"\b(rank|GPU|torchrun|python|minimal\.py|standalone|nproc-per-node|store|cuda)\b"
NOT_TRANSLATED += r"|\b(ValueError|SIGKILL|RANK|LOCAL_RANK|WORLD_SIZE)\b"


def file_of(name, ending=".svg"):
    return (ROOT / moving.FILES[name]).with_suffix(ending)


def committed(name, ending=".svg"):
    return file_of(name, ending).read_text(encoding="utf-8")


def data(name):
    drawn, values = svg.data_of(committed(name))
    assert drawn == name
    return values


def in_notebooks():
    """-> {name of a picture: what the notebooks show}"""
    found = {}
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        for output in moving.moving_pictures(nbformat.read(path, as_version=4)):
            text = output.data["image/svg+xml"]
            if not path.name.endswith(".zh.ipynb"):
                found[svg.data_of(text)[0]] = text
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_what_is_drawn_from_the_data_of_its_notebook(name):
    shown = in_notebooks()[name]
    assert svg.same_data(data(name), svg.data_of(shown)[1])
    drawn = moving.draw(name, data(name))
    assert drawn == committed(name) == shown, "python -m notebooks.pictures.moving"
    chinese = moving.draw(name, data(name), CHINESE)
    assert chinese == committed(name, ".zh.svg"), "python -m notebooks.pictures.moving"


@pytest.mark.parametrize("name", NAMES)
def test_the_words_of_a_chinese_picture_are_chinese(name):
    for words in svg.words_of(committed(name, ".zh.svg")):
        english = re.search(r"[A-Za-z]{2,}", re.sub(NOT_TRANSLATED, "", words))
        assert re.search(r"[\u4e00-\u9fff]", words) or not english, words


def test_the_numbers_of_the_first_page_are_those_of_a_step():
    values = data("idea")
    assert values["gradients"] == [2, 8] and values["average"] == 5
    assert values["weight"] == 3 and values["after"] == 2.5


def test_the_average_of_the_shards_is_the_batch():
    values = data("average")
    mean = torch.tensor(values["shards"]).mean(0)
    assert torch.allclose(mean, torch.tensor(values["whole"]), atol=1e-4)


def test_the_buckets_hold_all_gradients_and_the_last_one_is_exposed():
    values = data("buckets")
    network = import_module("03_ddp_spawn.train").make_model()
    sizes = [bucket["size"] for bucket in values["sent"]]
    assert sum(sizes) == sum(parameter.nbytes for parameter in network.parameters())
    assert all(bucket["sent"] < bucket["averaged"] for bucket in values["sent"])
    first, *_, last = values["sent"]
    complete = [moment for bucket in values["sent"] for moment in bucket["complete"]]
    assert len(complete) == len([*network.parameters()])
    assert first["sent"] < max(complete) <= last["sent"]


def test_the_cases_of_failures_are_those_that_the_ranks_run():
    cases = import_module("notebooks.ranks.04_failures").CASES
    drawn = {case: (failed, how) for case, (failed, how, _) in data("failures")["cases"].items()}
    assert drawn == cases
    assert {how for _, how in cases.values()} == set(moving.LANES)


def test_the_chunks_of_the_ring_are_those_of_the_algorithm():
    from_scratch = import_module("05_multinode.from_scratch")
    vectors = [torch.full((4,), 10**rank) for rank in range(4)]
    simulated = list(from_scratch.simulate(vectors))
    drawn = moving.ring_states(data("ring")["sends"])
    assert len(drawn) == len(simulated) == 7
    for state, expected in zip(drawn, simulated):
        sums = [[sum(10**source for source in chunk) for chunk in rank] for rank in state]
        assert torch.equal(torch.tensor(sums), torch.stack(expected))


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_no_script_and_no_other_file(name):
    text = committed(name)
    root = xml.dom.minidom.parseString(text).documentElement
    assert root.getElementsByTagName("desc")[0].firstChild.data.endswith(".")
    assert "<script" not in text and "@import" not in text and "url(http" not in text
    assert set(re.findall(r"(?:src|href)=", text)) == set()
    before, _, moves = text.partition(svg.MOTION)
    assert "animation:" not in before and "@keyframes" not in before
    assert ("@keyframes" in moves) == (name != "nodes")
    assert len(text) < 40_000


@pytest.mark.parametrize("name", NAMES)
def test_other_words_change_the_words_only(name):
    english = svg.words_of(committed(name))
    picture = moving.draw(name, data(name), words={english[0]: "其他文字"})
    assert svg.words_of(picture)[:2] == ["其他文字"] * 2
    assert picture.replace("其他文字", english[0]) == committed(name)


@NEEDS_BROWSER
@pytest.mark.parametrize("ending", [".svg", ".zh.svg"])
@pytest.mark.parametrize("name", NAMES)
def test_all_words_are_inside_the_picture_and_large_enough(name, ending, chromium):
    """On a phone the picture has 358 of its 600 units, so 18 units are 11 pixels high."""
    chromium.get(file_of(name, ending).as_uri())
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
    )
    boxes = chromium.execute_script(
        """return [...document.querySelectorAll("text")].map((one) => {
          const box = one.getBBox();
          const size = parseFloat(getComputedStyle(one).fontSize);
          return [one.textContent, box.x, box.x + box.width, size];
        });"""
    )
    assert len(boxes) == committed(name, ending).count("<text")
    for words, left, right, size in boxes:
        assert left > 4 and right < svg.WIDTH - 4 and size >= 18, words

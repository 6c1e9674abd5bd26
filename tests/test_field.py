"""doctor/field and docs/doctor/field_report.md: the page says what the records and recipes say."""

import json
import re
from pathlib import Path

import pytest

from doctor.field import field

PAGE = Path("docs/doctor/field_report.md")
NAMES = field.all_names()


def test_the_first_lines_are_those_of_the_records():
    scripts, ran, found, certain, true, wrong, unjudged, missed = re.findall(
        r"\d+", field.count(field.RESULTS)
    )
    _, _, text = " ".join(PAGE.read_text().split("\n\n")[1].split()).partition("second run,")
    assert (scripts, ran, unjudged) == ("20", "19", "0")
    assert f"{found} findings: {true} are true, {wrong} are wrong, and {missed} mistakes" in text
    assert certain == "8" and "8 " in text


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_what_a_row_needs(name):
    recipe = field.read(name)
    assert {"repository", "commit", "licence", "script", "judged", "missed"} <= set(recipe)
    assert "why_not" in recipe or {"prepare", "command"} <= set(recipe)
    assert f"`{name}`" in PAGE.read_text()


@pytest.mark.parametrize("file", sorted(field.RESULTS.rglob("*.json")), ids=str)
def test_each_finding_is_judged_and_names_no_folder_of_ours(file):
    judged = {one["key"] for one in field.read(file.stem)["judged"]}
    result = json.loads(file.read_text())
    assert {finding["key"] for finding in result["findings"]} <= judged
    assert "/tmp/" not in file.read_text()

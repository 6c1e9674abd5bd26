"""The Chinese pages: they repeat the English ones, and name the commit that they translate."""

import os
import re

import pytest
from conftest import ROOT

FOUND = [*ROOT.glob("*.zh.md"), *ROOT.glob("*_*/*.zh.md"), *ROOT.glob("docs/*.zh.md")]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in FOUND)
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def parts(page):
    """-> the code blocks, the levels of the headings, and the links of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = CODE.sub("", text.partition("\n")[2])
    levels = [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]
    return [m[0] for m in CODE.finditer(text)], levels, re.findall(r"\]\(([^)\s]+)\)", prose)


def english(links):
    """The pages that the English page links to, in any order: Chinese headings have other names."""
    pages = [link.partition("#")[0] for link in links]
    return sorted(page.replace(".zh.md", ".md") for page in pages)


def test_the_path_of_a_learner_is_there():
    assert len(PAGES) == 7 and {"README.zh.md", "docs/adapt.zh.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_it_has_the_headings_the_code_and_the_links_of_the_english_page(page):
    other = page.replace(".zh.md", ".md")
    (blocks, levels, links), (own, wanted, linked) = parts(page), parts(other)
    assert blocks == own and levels == wanted
    assert english(links) == english(linked)


@pytest.mark.parametrize("page", PAGES)
def test_the_two_lead_to_each_other_and_the_commit_is_named(page):
    name = os.path.basename(page)
    first = (ROOT / page).read_text(encoding="utf-8").partition("\n")[0]
    assert re.fullmatch(
        rf"\[English\]\({name.replace('.zh', '')}\) · 译自提交 [0-9a-f]{{7,40}}", first
    )
    other = (ROOT / page.replace(".zh.md", ".md")).read_text(encoding="utf-8")
    assert other.partition("\n")[0] == f"[中文]({name})"

"""The Chinese pages: each follows one version of its English page, and repeats its contents."""

import re

import pytest
from conftest import ROOT
from stamps import STAMP, blob

from tools.build_notebooks import CODE_CELLS

FOLDERS = ["", "0*_*/", "docs/**/", "notebooks/source/"]
FOUND = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}*.zh.md")]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in FOUND)
LINK_TO_ENGLISH = re.compile(r"\[English\]\((\S+)\)\n\n")
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *<!--.*?-->\n", re.MULTILINE | re.DOTALL)
# A paragraph that English does not have stands between these two comments.
ONLY_CHINESE = re.compile(r"<!-- only in Chinese -->\n.*?<!-- end -->\n", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def in_other_language(page):
    """-> the link to a page in the first lines of the other one: the source of a notebook has the
    notebook there."""
    name = page.rpartition("/")[2]
    if page.startswith("notebooks/"):
        return f"../{name.removesuffix('.md')}.ipynb"
    return name


def followed(page, text, english):
    """-> whether the page follows the English bytes of today; an AssertionError for a bad stamp."""
    other = page.replace(".zh.md", ".md")
    stamp = STAMP.match(text)
    link = LINK_TO_ENGLISH.match(text, stamp.end()) if stamp else None
    assert link, f"{page}: its first lines must be the stamp and the link to {other}"
    assert stamp[1] == other.rpartition("/")[2], f"{page}: the stamp must name {other}"
    assert link[1] == in_other_language(other), f"{page}: the link must lead to {other}"
    return stamp[2] == blob(english)


def headings(text):
    return re.findall(r"^(#+) +(.+)$", CODE.sub("", text), re.MULTILINE)


def section(page, fragment):
    """-> the position of the heading that a fragment names, because its words are translated."""
    for position, (_, words) in enumerate(headings(read(page))):
        plain = re.sub(r"[^\w\- ]", "", LINK.sub("", words).lower())
        if plain.replace(" ", "-") == fragment:
            return position
    raise AssertionError(f"{page} has no heading #{fragment}")


def destination(page, link):
    """-> where a link of a page leads: an English page, and the position of the heading in it."""
    path, _, fragment = link.partition("#")
    if re.match(r"[a-z]+:", path):
        return link
    target = (ROOT / page).parent / path if path else ROOT / page
    target = target.resolve()
    if page.endswith(".zh.md") and ".zh." not in target.name:
        sibling = target.with_suffix(f".zh{target.suffix}")
        assert not sibling.is_file(), f"{page}: {link} has a Chinese version, {sibling.name}"
    name = target.relative_to(ROOT).as_posix()
    if fragment and name.endswith(".md"):
        fragment = section(name, fragment)
    return name.replace(".zh.", "."), fragment


def paragraphs(text):
    """-> the paragraphs, list items, rows of tables and headings of a page, without its code."""
    text = ONLY_CHINESE.sub("", text)
    text = re.sub(r"^\[(中文|English)\]\(\S+\)\n", "", COMMENT.sub("", text), flags=re.MULTILINE)
    prose = CODE.sub("\n", text)
    starts = r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#+ ))"
    return [part.strip() for part in re.split(starts, prose) if part.strip()]


def contents(page, paragraph):
    """-> what both languages have alike: links, inline code, figures, sources of pictures."""
    links = [destination(page, link) for link in LINK.findall(paragraph)]
    code = {" ".join(one.split()) for one in re.findall(r"`([^`]+)`", paragraph)}
    sources = re.findall(r'src="([^"]+)"', paragraph)
    words = re.sub(r"`[^`]+`", " ", LINK.sub("] ", paragraph))
    words = re.sub(r"<[^>]+>", " ", words)
    numbers = [number.replace(",", "") for number in re.findall(r"\d[\d,.]*\d", words)]
    return {
        "links": sorted(links, key=str),
        "code": code,
        "sources": sources,
        "figures": set(numbers),
    }


def differences(page, text, english):
    """-> one line for each place in which the text differs from that of the English page."""
    other = page.replace(".zh.md", ".md")
    english = CODE_CELLS.sub("+++", english)
    if [m[0] for m in CODE.finditer(text)] != [m[0] for m in CODE.finditer(english)]:
        return [f"{page}: its code blocks are not those of {other}"]
    levels = [marks for marks, _ in headings(text)]
    if levels != [marks for marks, _ in headings(english)]:
        return [f"{page}: its headings are not those of {other}"]
    own, wanted = paragraphs(text), paragraphs(english)
    found = []
    for mine, theirs in zip(own, wanted, strict=False):
        have, want = contents(page, mine), contents(other, theirs)
        for kind in want:
            if have[kind] != want[kind]:
                found.append(f"{page}: {kind} {have[kind]}, not {want[kind]}, in: {mine}")
    if len(own) != len(wanted):
        found.append(f"{page} has {len(own)} paragraphs, items and rows, {other} {len(wanted)}")
    return found


def test_the_path_of_a_learner_is_there():
    stages = {page for page in PAGES if re.match(r"0[1-5]_\w+/README", page)}
    assert len(stages) == 5 and {"README.zh.md", "docs/your_script/adapt.zh.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_repeats_the_english_page_that_it_follows(page):
    other = page.replace(".zh.md", ".md")
    if not followed(page, read(page), (ROOT / other).read_bytes()):
        pytest.skip(f"{page} is out of step: {other} has changed since (see CONTRIBUTING.md)")
    found = differences(page, read(page), read(other))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_the_english_page_leads_to_the_chinese_one(page):
    english = read(page.replace(".zh.md", ".md"))
    assert english.startswith(f"[中文]({in_other_language(page)})\n")


def bold_that_markdown_does_not_see(text):
    """-> the lines with ** that opens or closes nothing, because it stands between a punctuation
    mark and a character, as in **字。**字"""
    found = []
    for line in CODE.sub("", text).splitlines():
        plain = re.sub(r"`[^`]+`", "`x`", line)
        for number, mark in enumerate(re.finditer(r"\*\*", plain)):
            before, after = plain[: mark.start()][-1:], plain[mark.end() :][:1]
            outside, inside = (after, before) if number % 2 else (before, after)
            if outside.isalnum() and not inside.isalnum():
                found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_bold_words_are_bold(page):
    assert bold_that_markdown_does_not_see(read(page)) == []

"""docs/messages.md: each case has an entry, and the messages are those that are printed."""

import re

import pytest
from conftest import LINUX, ROOT
from provoke_messages import CASES, LAUNCHES

PAGE = (ROOT / "docs/messages.md").read_text()


def entries():
    """-> {heading: text on one line}, in the order of the page."""
    body = re.sub(r"^## .*$", "", PAGE[PAGE.index("\n### ") :], flags=re.MULTILINE)
    parts = re.split(r"^### (.*)$", body, flags=re.MULTILINE)
    return {title: " ".join(text.split()) for title, text in zip(parts[1::2], parts[2::2])}


ENTRIES = entries()
NAMED = {  # an entry's cases
    heading: re.findall(r"`(\w+)`", text.partition("**Provoke:**")[2])
    for heading, text in ENTRIES.items()
}


def test_every_case_has_an_entry():
    assert sorted(sum(NAMED.values(), [])) == sorted(CASES)


@LINUX
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("launches", "every"),
    [
        pytest.param(False, 6, id="some"),
        pytest.param(False, 1, id="ranks", marks=pytest.mark.slow),
        pytest.param(True, 1, id="launchers", marks=pytest.mark.slow),
    ],
)
def test_messages_are_those_that_are_printed(reader, launches, every):
    """One wording of a heading, and all that an entry says that the case prints."""
    entries = dict(list(ENTRIES.items())[::every])
    named = {name for heading in entries for name in NAMED[heading]}
    names = [name for name in CASES if name in named and (name in LAUNCHES) == launches]
    (reader.folder / "tests").symlink_to(ROOT / "tests")
    result = reader.run(f"python tests/provoke_messages.py {' '.join(names)}", timeout=580)
    assert result.code == 0, result
    parts = re.split(r"^== (\w+)$", result.out, flags=re.MULTILINE)
    printed = dict(zip(parts[1::2], parts[2::2]))
    assert list(printed) == names
    missing = []
    for heading, text in entries.items():
        found = [printed[name] for name in NAMED[heading] if name in printed]
        for output in found:
            wordings = re.findall("`([^`]+)`", heading)
            if wordings and not any(occurs(words, output) for words in wordings):
                missing.append(f"{heading}\n{output}")
        shown = re.search("the case prints (.*?)(?:[.;] |$)", text)
        for words in re.findall("`([^`]+)`", shown[1]) if shown and found else []:
            if not any(occurs(words, output) for output in found):
                missing.append(f"{words}\n{''.join(found)}")
    assert not missing, "\n".join(missing)


def occurs(words, output):
    """Are these words printed on one line? "..." stands for numbers and names."""
    pattern = ".*?".join(re.escape(part) for part in words.split(" ... "))
    return re.search(pattern, output) is not None

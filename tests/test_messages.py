"""The pages of messages: each case has an entry, and prints what the entry says."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from conftest import LINUX, ROOT
from provoke_gpu_messages import CASES as GPU_CASES
from provoke_messages import CASES, LAUNCHES

ROLES = "cause setup killed waited lost vague frame note".split()
CONDITIONS = ("with: ", "without: ", "where: ", "ranks: ")
NAMES = ("launch", "hangs", "training", "devices")
PAGES = [ROOT / f"docs/failures/messages/{name}.md" for name in NAMES]


def entries():
    """-> {heading: text}, in the order of the pages."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        body = re.sub(r"^## .*$", "", text[text.index("\n### ") :], flags=re.MULTILINE)
        parts = re.split(r"^### (.*)$", body, flags=re.MULTILINE)
        for heading, entry in zip(parts[1::2], parts[2::2]):
            # A heading that stands on two pages would hide one of the entries.
            assert heading not in found
            found[heading] = entry
    return found


def wordings(text, current=False):
    """-> the messages in an entry's blocks, without roles, versions and conditions.

    current: without those that a release no longer prints.
    """
    blocks = re.findall(r"^```messages .*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    if current:
        lines = [line for line in lines if not re.search(r"  .*\buntil\b", line)]
    return [line.partition("  ")[0] for line in lines if not line.startswith(CONDITIONS)]


def cases(text, mark="**Provoke:**"):
    """-> the cases that an entry names in the paragraph after a mark."""
    after = text.partition(mark)[2]
    paragraph = after.partition("\n\n")[0]
    return re.findall(r"`(\w+)`", paragraph)


ENTRIES = entries()
NAMED = {heading: cases(text) for heading, text in ENTRIES.items()}


def test_every_case_has_an_entry():
    assert sorted(sum(NAMED.values(), [])) == sorted(CASES)


def test_logs_of_a_gpu_lead_to_their_entries(reader):
    """The logs were made by tests/provoke_gpu_messages.py on one GPU."""
    entries = {}
    for page, heading in HEADINGS.items():
        for name in cases(ENTRIES[heading], "**Provoke on a GPU:**"):
            entries[name] = page
    logs = {path.stem: path for path in (ROOT / "doctor/tests/gpu_logs").glob("*.log")}
    # The watchdog's lines have a page of their own, and no entry.
    assert sorted([*entries, "watchdog_timeout"]) == sorted(logs) == sorted(GPU_CASES)
    shown = entries_shown(reader, {name: logs[name].read_text() for name in entries})
    for name, page in entries.items():
        assert page in shown[name], name


def test_a_block_has_a_role_and_a_kind():
    for heading, text in ENTRIES.items():
        for info in re.findall(r"^```messages (.*)$", text, flags=re.MULTILINE):
            role, kind = info.split()
            assert role in ROLES, heading
            assert wordings(text), heading
            assert kind.isalpha(), heading
        assert "**Do:**" in text, heading


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
    """One wording of an entry, and all that it says that the case prints."""
    provoked = [heading for heading in ENTRIES if NAMED[heading]]
    entries = {heading: ENTRIES[heading] for heading in provoked[::every]}
    named = {name for heading in entries for name in NAMED[heading]}
    names = [name for name in CASES if name in named and (name in LAUNCHES) == launches]
    (reader.folder / "tests").symlink_to(ROOT / "tests")
    result = reader.run(f"python tests/provoke_messages.py {' '.join(names)}", timeout=580)
    assert result.code == 0, result
    parts = re.split(r"^== (\w+)$", result.out, flags=re.MULTILINE)
    printed = dict(zip(parts[1::2], parts[2::2]))
    assert list(printed) == names
    missing = []
    for heading in entries:
        outputs = [printed[name] for name in NAMED[heading] if name in printed]
        missing += not_printed(heading, outputs)
    assert not missing, "\n".join(missing)
    heard = {name: printed[name] for name in names if name not in SILENT}
    shown = entries_shown(reader, heard)
    wrong = []
    for name, pages in shown.items():
        if owner(name) not in [HEADINGS.get(page) for page in pages]:
            wrong.append(name)
    assert not wrong, [(name, shown[name]) for name in wrong]


# Output for which `ddp-doctor log` does not show the entry, with the reason.
SILENT = {
    "evaluation_on_rank_0": "which call is in the evaluation, the log does not say",
    "crossed_all_reduces": "a wrong sum without a message",
    "ddp_detail": "a crash without a message",
    "threads_of_torchrun": "torchrun prints it in each run, so it is left out",
    "spawned_rank_raises": "the error of the rank is shown, and not mp.spawn's report of it",
    "rank_raises": "the script has the traceback, and the report is not needed",
}


def owner(case):
    """-> the heading of the entry that names a case."""
    return next(heading for heading, named in NAMED.items() if case in named)


SHOW_ALL = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = ["doctor", "log", f"{name}.log", "--json", f"{name}.json"]
    try:
        runpy.run_module("doctor", run_name="__main__")
    except SystemExit as ended:
        assert ended.code in (0, 1), name
"""


def entries_shown(reader, outputs):
    """-> {name: the entries that `ddp-doctor log` shows for an output}"""
    (reader.folder / "show_all.py").write_text(SHOW_ALL)
    for name, output in outputs.items():
        (reader.folder / f"{name}.log").write_text(output)
    result = reader.run(f"python show_all.py {' '.join(outputs)}")
    assert result.code == 0, result
    shown = {}
    for name in outputs:
        found = json.loads((reader.folder / f"{name}.json").read_text())
        shown[name] = [entry["page"] for entry in found["entries"]]
    return shown


def anchors():
    """-> {PAGE#ANCHOR: heading}"""
    table = json.loads((ROOT / "doctor/ddp_doctor/log/messages.json").read_text())
    found = {row["page"]: row["title"] for row in table}
    plain = {heading.replace("`", ""): heading for heading in ENTRIES}
    return {page: plain[title] for page, title in found.items()}


HEADINGS = anchors()


def not_printed(heading, outputs):
    """-> what the outputs of an entry's cases lack: a wording of its block, or quoted output."""
    missing = []
    known = wordings(ENTRIES[heading])
    for output in outputs:
        # An entry without a block describes a symptom, and only its quoted output is compared.
        if known and not any(occurs(words, output) for words in known):
            missing.append(f"{heading}\n{output}")
    everything = "".join(outputs)
    if not outputs:
        return missing
    for words in quoted(ENTRIES[heading]):
        if not occurs(words, everything):
            missing.append(f"{words}\n{everything}")
    return missing


def quoted(text):
    """-> the output that an entry quotes after "the case prints"."""
    shown = re.search("the case prints (.*?)(?:[.;] |$)", " ".join(text.split()), re.IGNORECASE)
    if shown is None:
        return []
    return re.findall("`([^`]+)`", shown[1])


def occurs(words, output):
    """Are these words printed? A hole stands for numbers and names, a blank for any white space."""
    pattern = re.escape(words)
    # re.escape puts a backslash before a blank and before each brace of a hole.
    pattern = re.sub(r"(\\ )+", r"\\s+", pattern)
    pattern = re.sub(r"\\\{\w*\\\}", ".{0,200}?", pattern)
    return re.search(pattern, output, flags=re.DOTALL) is not None


# ---------------------------------------------------------------- the installed PyTorch

# Wordings that PyTorch does not have as a text of its own: they are of Python, a driver, a
# scheduler or another library, or are put together while the program runs.
OTHERS = (ROOT / "tests/messages_of_others.txt").read_text(encoding="utf-8").splitlines()


TORCH = Path(torch.__file__).parent
WITH_CUDA = (TORCH / "lib/libtorch_cuda.so").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not WITH_CUDA, reason="NCCL's messages are in PyTorch's build with CUDA")
def test_wordings_are_those_of_the_installed_pytorch():
    """So that a release that renames a message is noticed. `until` marks the old ones."""
    text = texts_of_torch()
    missing = []
    for entry in ENTRIES.values():
        for words in wordings(entry, current=True):
            parts = [" ".join(part.split()) for part in re.split(r"\{\w*\}", words)]
            if not all(part in text for part in parts):
                missing.append(words)
    assert sorted(set(missing)) == sorted(OTHERS)


def texts_of_torch():
    """-> the strings of PyTorch's Python files and libraries, with single blanks."""
    found = []
    for path in sorted(TORCH.rglob("*.py")):
        if "testing" not in path.parts:
            found += strings_of_python(path)
    for path in sorted((TORCH / "lib").glob("*.so")):
        found += re.findall(rb"[\x20-\x7e\n\t]{6,}", path.read_bytes())
    texts = [one if isinstance(one, str) else one.decode("ascii") for one in found]
    return re.sub(r"\s+", " ", "\n".join(texts))


def strings_of_python(path):
    """-> the strings of a file; those over several lines are joined by Python's own parser."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            found.append("".join(parts))
    return found

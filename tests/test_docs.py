"""The blocks on README, the stages' pages, docs/ and in notebooks, by the comment above them.

<!-- run -->               a sh or python block, run from the repository's root as a reader would
<!-- run on 2 ranks -->    a python block, started by torchrun
<!-- run with exit code 1 -->  a block that ends with this code
<!-- prints -->            lines that the last block that was run has printed
<!-- from PATH -->         lines of a file, in its order; a line "..." stands for lines left out
<!-- diff PATH PATH -->    the difference of two scripts without their docstrings
<!-- lines PATH PATH -->   code of that difference, without comments; "..." stands for anything.
                           Lines without + or - are in both.
<!-- measured -->          a script of an examples/ folder is run; benchmarks/run_all.py measures it

A PATH is relative to the page or to the repository's root.
"""

import difflib
import json
import re
import shlex
import statistics
import textwrap

import pytest
import torch
from conftest import ROOT, STAGES, free_port

EXAMPLES = sorted(ROOT.glob("docs/*/examples/*.py"))
PAGES = [ROOT / "README.md", *(ROOT / stage / "README.md" for stage in STAGES)]
PAGES += [ROOT / "05_multinode/RING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "notebooks/source").glob("*.md"))
NUMBER = re.compile(r"# \d+[a-z]?\. ")
MARKED = re.compile(r"^ *<!-- ([^\n]+) -->\n\n? *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def marked(kind):
    """(page, what stands after the kind, language, text) of all marked blocks of a kind."""
    blocks = []
    for page in PAGES:
        for number, (mark, language, text) in enumerate(MARKED.findall(page.read_text())):
            if mark.split()[0] == kind:
                name = f"{page.relative_to(ROOT)}-{number}"
                value = (page, mark.removeprefix(kind).strip(), language, text)
                blocks.append(pytest.param(*value, id=name))
    return blocks


def what_it_prints(page, text):
    """The lines of the <!-- prints --> block that comes next after a block, if there is one."""
    blocks = MARKED.findall(page.read_text())
    place = [block[2] for block in blocks].index(text) + 1
    follows = place < len(blocks) and blocks[place][0] == "prints"
    return blocks[place][2].splitlines() if follows else []


EXAMPLES_THAT_ARE_MEASURED = [
    block for block in marked("measured") if block.values[3].startswith("torchrun ")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "how", "language", "text"), marked("run") + EXAMPLES_THAT_ARE_MEASURED
)
def test_a_block_runs(reader, page, how, language, text):
    lines = what_it_prints(page, text)
    text = text.replace(" --data data", "")  # the small data instead
    if language == "python":
        (reader.folder / "block.py").write_text(text)
        ranks = re.fullmatch(r"on (\d) ranks", how)
        torchrun = f"torchrun --standalone --nproc-per-node {ranks[1]}" if ranks else "python"
        command = f"{torchrun} block.py"
    else:
        for port in set(re.findall(r"\b295\d\d\b", text)):  # two tests may run at the same time
            text = text.replace(port, str(free_port()))
        command = f"bash -ec {shlex.quote(text)}"
    result = reader.run(command, timeout=170, OMP_NUM_THREADS="1")  # short of pytest's own limit
    code = re.fullmatch(r"with exit code (\d)", how)
    assert result.code == (int(code[1]) if code else 0), result
    for line in lines:
        assert line in result.out, result  # ranks may print into one another's lines


@pytest.mark.parametrize(("page", "path", "language", "text"), marked("from"))
def test_quoted_lines_are_in_the_file(page, path, language, text):
    quoted = textwrap.dedent(text).splitlines()
    source = file_of(page, path).read_text().splitlines()
    indent = "|".join({" " * (len(line) - len(line.lstrip())) for line in source} | {""})
    rest = "\n".join(source) + "\n"
    for part in "\n".join(quoted).split("\n...\n"):
        lines = [re.escape(line) if line else "" for line in part.splitlines()]
        spaces = [r"(?P=indent)" if line else "" for line in lines]
        pattern = rf"^(?P<indent>{indent}){lines[0]}\n"
        pattern += "".join(f"{space}{line}\n" for space, line in zip(spaces[1:], lines[1:]))
        found = re.search(pattern, rest, re.MULTILINE)
        assert found, f"not in {path}, or not in this order:\n{part}"
        rest = rest[found.end() :]


@pytest.mark.parametrize(("page", "paths", "language", "text"), marked("diff"))
def test_a_quoted_difference_is_that_of_the_files(page, paths, language, text):
    assert language == "diff"
    assert text == difference(*(file_of(page, path) for path in paths.split()))


@pytest.mark.parametrize(("page", "paths", "language", "text"), marked("lines"))
def test_the_code_of_a_line_is_in_the_difference(page, paths, language, text):
    before, after = (file_of(page, path).read_text() for path in paths.split())
    for line in text.splitlines():
        code = re.escape(line[1:].partition("  #")[0].rstrip()).replace(r"\.\.\.", ".*")
        pattern = re.compile(rf"^{code}(  #.*)?$", re.MULTILINE)
        assert bool(pattern.search(after)) == (line[0] in "+ "), line
        assert bool(pattern.search(before)) == (line[0] in "- "), line


def file_of(page, path):
    near = page.parent / path
    return near if near.exists() else ROOT / path


def difference(before, after):
    """What a page quotes: the lines that differ, a line around them, and "..." between places.

    A comment that differs only in the number of a change is the same.
    """
    old, new = (path.read_text().partition('"""\n\n')[2].splitlines() for path in (before, after))
    numbered = {NUMBER.sub("# ", line): line for line in new}
    old = [numbered.get(NUMBER.sub("# ", line), line) for line in old]
    lines = [line.rstrip() for line in difflib.unified_diff(old, new, n=1, lineterm="")][3:]
    return "".join(" ...\n" if line.startswith("@@") else f"{line}\n" for line in lines)


# ---------------------------------------------------------------- a script of one's own


def trained_by(reader, launcher, script):
    """Run a script -> what it prints, and the weights that it saves."""
    (reader.folder / "own.py").write_text(script)
    result = reader.run(f"{launcher} own.py", OMP_NUM_THREADS="1")
    assert result.code == 0, result
    return result.out, torch.load(reader.folder / "regression.pt", weights_only=True)


@pytest.mark.slow
def test_one_rank_of_the_adapted_script_trains_the_weights_of_the_plain_one(reader):
    """As adapt.md's "Is it right" has it: the plain script takes the sampler of a single rank."""
    before, after = ((EXAMPLES / f"adapt_{name}.py").read_text() for name in ("before", "after"))
    sampler = "    sampler = DistributedSampler(train_set, num_replicas=1, rank=0)\n"
    before = before.replace("import DataLoader", "import DataLoader, DistributedSampler")
    before = before.replace("    loader = ", f"{sampler}    loader = ")
    before = before.replace("shuffle=True", "sampler=sampler")
    loop = "    for epoch in range(8):\n"
    before = before.replace(loop, f"{loop}        sampler.set_epoch(epoch)\n")
    said, weights = trained_by(reader, "python", before)
    said_too, weights_too = trained_by(reader, "torchrun --standalone", after)
    assert said == said_too and "on 2000 points" in said
    torch.testing.assert_close(weights, weights_too, rtol=0, atol=0)


@pytest.mark.slow
def test_two_ranks_of_the_adapted_script_train_the_weights_of_one(reader):
    script = (EXAMPLES / "adapt_after.py").read_text()
    plain = re.sub(r"\n.*# augmentation", "", script)
    weights = []
    for ranks in (1, 2):
        launcher = f"torchrun --standalone --nproc-per-node {ranks}"
        weights.append(trained_by(reader, launcher, plain)[1])
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
    assert script != plain


STARTED = [path for path in EXAMPLES if "start it with torchrun" in path.read_text()]


@pytest.mark.parametrize("script", STARTED)
def test_a_script_to_copy_says_how_it_is_started(called, monkeypatch, script):
    monkeypatch.delenv("RANK", raising=False)
    result = called(str(script.relative_to(ROOT)))
    assert result.code == 1 and result.out == "" and result.err.count("\n") == 1, result
    assert result.err.startswith("start it with torchrun")


# ---------------------------------------------------------------- figures


def test_figures_of_the_timings_page():
    page = " ".join((ROOT / "docs/speed/second_device.md").read_text().split())
    for batch in (60, 240):
        measured = json.loads((ROOT / f"benchmarks/results/limit-{batch}.json").read_text())
        versions = measured["versions"]
        bound = versions["no communication (upper bound)"]["total"]
        own = versions["DDP, default options"]["total"]
        part = statistics.median(limit / step for limit, step in zip(bound, own))
        assert re.search(rf"{part:.2f} (of that speed )?with {batch}", page)


def test_every_page_of_docs_is_in_the_index_of_its_folder():
    for page in (ROOT / "docs").glob("*/**/*.md"):
        index = ROOT / "docs" / page.relative_to(ROOT / "docs").parts[0] / "README.md"
        link = page.relative_to(index.parent).as_posix()
        own = page.name == "README.md" or page.stem.endswith(".zh")
        assert own or f"]({link}" in index.read_text(), page

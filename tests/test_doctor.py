"""The doctor on our exercises and stages. Its own tests are in doctor/tests."""

import json
import os
import re

import pytest
from conftest import ROOT, STAGES

from exercises.exercise import all_exercises

TORCHRUN = "torchrun --standalone --nproc-per-node 2"
EXERCISES = {e.name: e for e in all_exercises()}
KEYS = {  # by exercise: the finding that names its mistake
    "same_order": "same-order",
    "padded_accuracy": "padded-evaluation",
    "rank_0_evaluates": "one-rank-communicates",
    "through_the_module": "not-through-ddp",
    "batch_and_rate": "batch-grows",
    "same_augmentation": "same-random-numbers",
    "unused_branch": "unused-parameters",
    "all_ranks_download": "file-race",
    "crossed_collectives": "crossed-order",
    "uneven_batches": "uneven-steps",
    "loss_of_unequal_counts": "unequal-counts",
    "no_sync_off_by_one": "last-pass-not-synced",
    "batchnorm_of_rank": "buffers-differ",
    "unfrozen_after_wrapping": "not-in-ddp",
    "clip_before_unscale": "clip-scaled",
    "sharded_too_late": "zero-gradients",
}
LINES = {  # by exercise: what is in the line that the finding names, where that is certain
    "same_order": "for x, y in loader:",
    "padded_accuracy": "for x, y in loader:",
    "same_augmentation": "loss = F.mse_loss(ddp_model(noisy), y)",
    "batch_and_rate": "optimizer.step()",
    "loss_of_unequal_counts": "loss.backward()",
    "no_sync_off_by_one": "optimizer.step()",
    "through_the_module": "loss.backward()",
    "unfrozen_after_wrapping": "optimizer.step()",
    "crossed_collectives": "dist.all_reduce(number)",
    "rank_0_evaluates": "return F.mse_loss(model(x), y).item()",
    "sharded_too_late": "optimizer.step()",
}


@pytest.fixture
def doctor(reader, tmp_path):
    """Runs `check` on a command, in a folder of its own -> the Result, and what --json wrote."""

    def run(command, flags="", timeout=200):
        out = tmp_path / "found.json"
        out.unlink(missing_ok=True)
        line = f"python '{ROOT}/doctor' check --json '{out}' {flags} {command}"
        result = reader.run(line, timeout=timeout)
        return result, json.loads(out.read_text()) if out.exists() else None

    return run


def keys(said, severity=None):
    found = set()
    for finding in said["findings"]:
        if severity in (None, finding["severity"]):
            found.add(finding["key"])
    return found


def test_the_page_has_every_finding_and_links_to_its_page_and_exercise(reader):
    listed = reader.run(f"python '{ROOT}/doctor' check --list").out
    texts = listed.strip().split("\n\n")
    page = (ROOT / "docs/doctor/check.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` (.*)", page, re.MULTILINE))
    found = {}
    for text in texts:
        key = text.split()[0]
        found[key] = re.search(r"See: (.+?)(?:, exercise (\d\d) in exercises/)?$", text).groups()
    assert list(found) and sorted(rows) == sorted(found)
    for key, (there, exercise) in found.items():
        path, _, anchor = there.removeprefix(f"{ROOT}/").partition("#")
        assert (ROOT / path).exists(), path
        link = os.path.relpath(path, "docs/doctor")
        assert f"({link}{'#' if anchor else ''}{anchor})" in rows[key], key
        linked = re.search(r"\[(\d\d)\]\((?:\.\./){2}exercises/(\d\d)_\w+/task\.py\)", rows[key])
        assert (linked and linked[1]) == exercise, key
    numbers = {number for _, number in found.values() if number}
    assert numbers == {EXERCISES[name].number for name in KEYS}


@pytest.mark.slow
def test_a_right_script_trains_the_same_weights_bit_for_bit(doctor, reader, small_data):
    command = f"{TORCHRUN} 04_ddp_torchrun/minimal.py"
    reader.run(command)
    (reader.folder / "minimal.pt").rename(reader.folder / "without.pt")
    result, said = doctor(command)
    assert result.code == 0 and not keys(said, "wrong"), result
    assert len(said["looked_at"]) >= 3 and said["facts"]["samples"] == 240
    import torch

    left, right = (torch.load(reader.folder / f"{n}.pt") for n in ("without", "minimal"))
    assert all(torch.equal(left[name], right[name]) for name in left | right)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_each_broken_exercise_is_named_and_none_that_is_fixed(name, doctor, tmp_path):
    exercise = EXERCISES[name]
    key = KEYS[name]

    def judged(file):
        flags = ""
        if name == "batch_and_rate":
            doctor(f"{TORCHRUN[:-1]}1 '{file}'")
            flags = f"--alone '{(tmp_path / 'found.json').rename(tmp_path / 'one.json')}'"
        return doctor(f"{TORCHRUN} '{file}'", flags)

    result, said = judged(exercise.file)
    found = next((f for f in said["findings"] if f["key"] == key), None)
    assert found and found["exercise"] == exercise.number, result
    line = int(found["at"].rpartition(":")[2])
    assert LINES.get(name, "") in exercise.file.read_text().splitlines()[line - 1]
    if name == "rank_0_evaluates":
        assert said["command"]["end"] == "hang" and keys(said, "wrong") == {key}
        assert "Rank 0 waits in forward" in found["seen"]
    file = tmp_path / exercise.file.name
    file.write_text(exercise.solution)
    result, said = judged(file)
    assert not keys(said, "wrong") and key not in keys(said), result


@pytest.mark.slow
@pytest.mark.parametrize("script", ["minimal.py", "train.py"])
@pytest.mark.parametrize("stage", STAGES[2:])
def test_nothing_is_found_in_the_stages(stage, script, doctor):
    start = TORCHRUN if stage > "04" else "python"
    flags = "--epochs 2 --device cpu" if script == "train.py" else ""
    result, said = doctor(f"{start} {stage}/{script} {flags}")
    assert result.code == 0 and said["ranks"] == 2 and not said["findings"], result

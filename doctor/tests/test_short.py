"""--short: where a pass may end, what the sampler tells of the rest, and whose files stay."""

import json
import os
import re
import shutil
import sys
import tempfile
import time

import pytest
import torch
from conftest import DOCTOR, TORCHRUN, keys
from ddp_doctor.run.kept import put_back
from ddp_doctor.watch import keep, short
from ddp_doctor.watch.note import PROCESS

# 50 batches per rank; 101 samples are evaluated; 4 epochs.
SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
x = torch.randn(901, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x.sum(1) > 0).long())
train, test = [torch.utils.data.Subset(data, part) for part in (range(800), range(800, 901))]
sampler = DistributedSampler(train, shuffle=True)
loader = DataLoader(train, 8, sampler=sampler, num_workers=1)
tests = DataLoader(torch.utils.data.Subset(test, range(rank, 101, 2)), 4)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 4 * len(loader))
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
    count = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in tests:
            right = model.module(inputs).argmax(1) == targets
            count += torch.tensor([right.sum(), len(right)])
    dist.all_reduce(count)
    if rank == 0:
        print(f"{count[1]:.0f} tested, {len(loader)} batches in an epoch", flush=True)
        torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
"""
PADDED = SCRIPT.replace(
    "torch.utils.data.Subset(test, range(rank, 101, 2)), 4",
    "test, 4, sampler=DistributedSampler(test, shuffle=False)",
).replace("    sampler.set_epoch(epoch)\n", "")


def line_of(text, words):
    return [words in line for line in text.splitlines()].index(True) + 1


def test_a_long_run_is_cut(user):
    (user.folder / "train.py").write_text(SCRIPT)
    old = user.folder / "model.pt"
    old.write_text("of last week")
    os.utime(old, (1, 1))
    done, said = user.check(f"{TORCHRUN} train.py", "--short 5")
    assert done.returncode == 0 and not said["findings"], done
    assert said["command"]["end"] == "enough" and said["facts"]["steps"] == 10
    assert done.stdout.count("40 tested, 50 batches in an epoch") == 2
    for passes in ("passes over the training data", "evaluations"):
        assert f"{passes}: 2 on each rank, shortened to 5 batches" in said["looked_at"]
    assert any("schedule" in text for text in said["not_judged"])
    assert old.read_text() == "of last week"
    assert set(torch.load(user.folder / "model.short.pt")) == {"module.weight", "module.bias"}
    assert any("model.short.pt" in text for text in said["short"]["about"])
    assert {path.name for path in user.folder.iterdir() if path.is_file()} == {
        "train.py",
        "found.json",
        "model.pt",
        "model.short.pt",
    }


@pytest.mark.slow
def test_a_mistake_in_batches_that_were_not_loaded_is_certain(user):
    text = PADDED.replace("range(4)", "range(2)")
    (user.folder / "train.py").write_text(text)
    done, said = user.check(f"{TORCHRUN} train.py", "--short")
    assert done.returncode == 1 and said["command"]["end"] == "ended", done
    origins = {one["key"]: one["comes_from"] for one in said["findings"]}
    assert keys(said, "wrong") == {"padded-evaluation", "same-order"}
    assert origins["padded-evaluation"] == f"train.py:{line_of(text, 'sampler=DistributedSampler')}"
    assert origins["same-order"] == f"train.py:{line_of(text, 'for epoch in')}"


ITERABLE = SCRIPT.replace("sampler = DistributedSampler(train, shuffle=True)", "sampler = None")
ITERABLE = ITERABLE.replace("    sampler.set_epoch(epoch)\n", "").replace(
    "loader = DataLoader(train, 8, sampler=sampler, num_workers=1)",
    """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(rank, 800, 2):
            yield train[number]

    def __len__(self):
        return 400

loader = DataLoader(Stream(), 8)
""",
)
NO_LOADER = SCRIPT.replace("in loader:", "in [*zip(x.split(8), data.tensors[1].split(8))][:9]:")
NO_LOADER = NO_LOADER.replace("in tests:", "in [(x[800:], data.tensors[1][800:])]:")
COUNTED = SCRIPT.replace("range(4)", "range(2)").replace(
    "    for inputs, targets in loader:\n",
    """    batches = iter(loader)
    for _ in range(50):
        inputs, targets = next(batches)
""",
)


@pytest.mark.slow
def test_an_iterable_data_set_gives_a_few_batches_and_nothing_more_is_claimed(user):
    (user.folder / "train.py").write_text(ITERABLE)
    done, said = user.check(f"{TORCHRUN} train.py", "--short 5")
    assert done.returncode == 0 and said["facts"]["steps"] == 10, done
    assert "which samples an IterableDataset gave" in said["not_judged"]
    assert not any(text.startswith("passes") for text in said["looked_at"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "steps", "term"),
    [
        (NO_LOADER, 36, "no effect"),
        (COUNTED, 100, f"train.py:{line_of(COUNTED, 'next(batches)')}"),
    ],
    ids=["no loader", "a loop that calls next()"],
)
def test_a_loop_that_it_cannot_shorten_runs_to_its_end(user, script, steps, term):
    (user.folder / "train.py").write_text(script)
    done, said = user.check(f"{TORCHRUN} train.py", "--short 5")
    assert done.returncode == 0 and said["facts"]["steps"] == steps, done
    [text] = said["short"]["about"]
    assert term in text and text in done.stdout


@pytest.mark.slow
def test_speed_measures_the_steps_after_the_first_five(user):
    (user.folder / "train.py").write_text(SCRIPT)
    done = user.doctor(f"speed --short 20 --json speed.json {TORCHRUN} train.py")
    said = json.loads((user.folder / "speed.json").read_text())
    assert done.returncode == 0 and said["command"]["end"] == "enough", done
    assert said["speed"]["steps"]["all"] == 40
    assert said["speed"]["steps"]["regular"] <= 35


# ------------------------------------------------------------------ where a pass may end


class Asked:
    """An iterator that asks whether the one who wants its next item expects an end."""

    def __init__(self):
        self.answers = []

    def __iter__(self):
        return self

    def __next__(self):
        self.answers.append(short.ends_quietly(sys._getframe(1)))
        if len(self.answers) > 1:
            raise StopIteration
        return 1


def a_loop(asked):
    for _ in asked:
        pass


def a_loop_with_numbers(asked):
    for _ in enumerate(zip(asked, range(9))):
        pass


def a_list(asked):
    list(asked)


def a_star(asked):
    return [*asked]


def delegated(asked):
    def generator():
        yield from asked

    list(generator())


def caught(asked):
    while True:
        try:
            next(asked)
        except StopIteration:
            break


def caught_outside(asked):
    def one():
        return next(asked)

    try:
        while True:
            one()
    except StopIteration:
        pass


def with_a_default(asked):
    while next(asked, None):
        pass


@pytest.mark.parametrize(
    "reads",
    [
        a_loop,
        a_loop_with_numbers,
        a_list,
        a_star,
        delegated,
        caught,
        caught_outside,
        with_a_default,
    ],
)
def test_a_loop_that_expects_an_end_gets_one(reads):
    asked = Asked()
    reads(asked)
    assert all(asked.answers) and asked.answers


def counted(asked):
    for _ in range(1):
        next(asked)


def in_a_generator(asked):
    def generator():
        yield next(asked)

    for _ in generator():
        pass


@pytest.mark.parametrize("reads", [counted, in_a_generator])
def test_a_loop_that_expects_no_end_gets_none(reads):
    asked = Asked()
    reads(asked)
    assert asked.answers == [False]


# ------------------------------------------------------------------ files


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A rank that began after these files were written, and the folder in which it notes them."""
    folder = tmp_path / "ddp-doctor-x"
    folder.mkdir()
    monkeypatch.setenv("DDP_DOCTOR_FOLDER", str(folder))
    monkeypatch.setenv("DDP_DOCTOR_STARTED", str(time.time() - 100))
    monkeypatch.setattr(PROCESS, "spawned", True)
    (tmp_path / "run").mkdir()
    for name in ("a.pt", "b.pt", "run/c.pt", "run/d.pt"):
        (tmp_path / name).write_text(f"old {name}")
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


def touch(event, *args):
    keep.hear(event, args)


def test_what_is_written_over_renamed_or_removed_is_put_back(files):
    first = files / "a.pt"
    second = files / "b.pt"
    tree = files / "run"
    for _ in range(2):  # also what the run itself has written is written over
        touch("open", str(first), "w", os.O_TRUNC | os.O_WRONLY)
        first.write_text("new a")
    touch("os.rename", str(first), str(second), -1, -1)
    os.replace(first, second)
    touch("shutil.rmtree", str(tree), None)
    shutil.rmtree(tree)
    put = put_back(files / "ddp-doctor-x")
    assert first.read_text() == "old a.pt" and second.read_text() == "old b.pt"
    assert (tree / "c.pt").read_text() == "old run/c.pt" and (tree / "d.pt").exists()
    assert (files / "b.short.pt").read_text() == "new a"
    assert put[str(second)] == str(files / "b.short.pt") and put[str(first)] is None
    left = {path.name for path in files.iterdir()}
    assert left == {"a.pt", "b.pt", "b.short.pt", "run", "ddp-doctor-x"}


def test_a_temporary_file_leaves_its_folder_alone(files):
    """Python opens it without a name, and tells its hooks that the folder is opened to write."""
    sys.addaudithook(lambda event, args: keep.hear(event, args) if files_are_watched else None)
    files_are_watched = True
    before = sorted(path.name for path in files.rglob("*"))
    with tempfile.TemporaryFile(dir=files) as file:
        file.write(b"3")
    touch("open", str(files / "run"), "w+b", os.O_TRUNC | os.O_RDWR | os.O_CREAT)
    files_are_watched = False
    assert sorted(path.name for path in files.rglob("*")) == before


def test_a_file_behind_a_link_is_kept(files):
    (files / "last.pt").symlink_to(files / "a.pt")
    touch("open", str(files / "last.pt"), "w", os.O_TRUNC | os.O_WRONLY)
    (files / "last.pt").write_text("new")
    put_back(files / "ddp-doctor-x")
    assert (files / "last.pt").read_text() == "old a.pt"
    assert (files / "a.short.pt").read_text() == "new"


def test_what_is_empty_new_or_appended_to_is_left_alone(files):
    (files / "lock").write_text("")
    (files / "new.pt").write_text("of this run")
    os.utime(files / "lock", (1, 1))
    for name in ("lock", "new.pt"):
        touch("open", str(files / name), "w", os.O_TRUNC | os.O_WRONLY)
    touch("open", str(files / "a.pt"), "a", os.O_APPEND | os.O_WRONLY)
    assert (files / "new.pt").exists() and (files / "a.pt").exists()
    assert put_back(files / "ddp-doctor-x") == {}


# ------------------------------------------------------------------ the page


@pytest.mark.slow
def test_the_page_shows_what_is_found_in_its_script(user):
    script = DOCTOR / "tests/scripts/reader.py"
    done, said = user.check(f"{TORCHRUN} '{script}'", "--short")
    page = (DOCTOR.parent / "docs/doctor/check.md").read_text()
    [shown] = re.findall(r"```text\n.*?\n\n(.*?)```", page, re.DOTALL)[:1]
    assert shown in done.stdout.replace(f"{DOCTOR.parent}/", "")
    assert keys(said, "wrong") == {"padded-evaluation", "same-order"}

"""The file of a process: values that are told later, and a long run that keeps it small."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ddp_doctor.run.events import Backward, Collective, EpochEnded, Unseen, read  # noqa: E402
from ddp_doctor.run.run import waits_of  # noqa: E402
from ddp_doctor.watch import note, tensors  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the process writes, as a process that has just begun."""
    monkeypatch.setenv("DDP_DOCTOR_FOLDER", str(tmp_path))
    note.PROCESS.__init__()
    yield tmp_path
    note.PROCESS.__init__()


def events_in(folder):
    [file] = folder.glob("*.jsonl")
    return read(file)


def backward(loss):
    fields = {"averages": True, "factor": 1.0, "mean": True, "targets": None, "scaled": False}
    return Backward(note.now(), at="train.py:1", loss=loss, **fields)


def collective(line):
    fields = {"called_from": [], "functions": [], "numel": 1, "whole_group": True, "about": {}}
    flags = {"by_torch": False, "trimmed": False, "decides": False, "sums": True}
    flags["of_training"] = False
    return Collective(
        note.now(), at=f"train.py:{line}", op="all_reduce", values=[], **fields, **flags
    )


def test_what_is_on_a_gpu_is_told_later(folder, monkeypatch):
    """Here all tensors count as those of a GPU."""
    plain = note.settled

    def settled(event, to_be_told):
        for name, value in vars(event).items():
            if isinstance(value, torch.Tensor) and to_be_told:
                kind = type(event)
                number = note.PROCESS.written[kind]
                note.PROCESS.later.append((kind.__name__, number, name, value))
                return backward(None)
        return plain(event, to_be_told)

    monkeypatch.setattr(note, "settled", settled)
    note.write(backward(torch.tensor(0.5)))
    note.write(backward(torch.tensor(0.25)))
    assert [event.loss for event in events_in(folder)] == [None, None]
    note.write(EpochEnded(note.now(), 0))
    losses = [event.loss for event in events_in(folder) if isinstance(event, Backward)]
    assert losses == [0.5, 0.25]


def test_the_end_of_a_long_file_says_where_the_process_is(folder, monkeypatch):
    monkeypatch.setattr(note, "MOST_WAITS", 10)
    for line in range(50):
        note.write(collective(line))
        with note.waiting("all_reduce"):
            pass
    few = len(events_in(folder))
    assert waits_of(events_in(folder)) is None
    note.write(collective(99))
    assert waits_of(events_in(folder)).at == "train.py:99"
    note.write(Unseen(note.now(), "another", "event"))
    assert waits_of(events_in(folder)).at == "train.py:99"
    assert len(events_in(folder)) < few + 4 < 20


def test_fingerprints_tell_what_differs():
    row = torch.tensor([1.0, 2.0, 3.0])
    other = torch.tensor([2.0, 1.0, 3.0])
    large = torch.arange(2_000_001, dtype=torch.float32)
    prints = tensors.fingerprints([row, row.clone(), other, None, large, large + 1, row.half()])
    assert prints[0] == prints[1] != prints[2]
    assert prints[3] == -1
    assert prints[4] != prints[5]

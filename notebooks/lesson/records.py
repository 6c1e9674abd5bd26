"""What was measured and committed, and the digits that notebooks train on."""

import functools
import statistics
from pathlib import Path

from lib import records
from lib.records import medians
from tools import draw_digits

from .ranks import ROOT, temporary_folder

RECORDS = ("docs/timings/cpu-2-cores.jsonl", "docs/timings/cpu-2-cores-settings.jsonl")


def measured(stage: str, **settings) -> list[dict]:
    """The committed repeats of a run, such as measured("03_ddp_spawn", batch_size=120).

    stage: as it stands in the record. "02_dp-threads" is 02_dp/from_scratch.py --train.
    """
    found = []
    for path in RECORDS:
        found += records.read(ROOT / path)
    return records.find(records.rows_of(found), stage, **settings)


def phases(row: list[dict]) -> dict[str, float]:
    """Milliseconds of one step in each phase: medians over the epochs and repeats of a row."""
    return {phase: medians(row)[phase] for phase in records.PHASES}


def ratio(row: list[dict], base: list[dict]) -> float:
    """How many times as fast as the base a row is: the median over the repeats."""
    return statistics.median(records.ratios(row, base))


@functools.cache
def digits(train: int = 6000, test: int = 1000) -> Path:
    """A folder with synthetic digits in MNIST's format: the same ones at every call and place.

    Small, and no network needed. It is removed when the notebook's kernel ends.
    """
    folder = Path(temporary_folder(), f"drawn-{train}")
    draw_digits.draw_data_set(folder / "MNIST/raw", train, test)
    return folder

"""Records of runs: reading a file of them, and the figures and tables that are made of them.

A record is one line of JSON, which a stage has appended to a file. A row is a list of records with
equal settings: the repeats of a run, in the order of the file.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from statistics import mean, median, quantiles

from tabulate import tabulate

STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
SETTINGS = ("batch_size", "epochs", "lr", "threads", "workers", "seed")
WAYS = ("amp", "sync_batchnorm")  # settings that only some stages have
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("images", *SETTINGS, *WAYS, "device", "dataset", "torch", "host", "device_name")
RUN = ("file", "stage", "name", "world_size", "hosts")
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = ("#999999", "#56B4E9", "#0072B2", "#D55E00", "#E69F00")
PHASES = dict(zip(("data", "forward", "backward", "exposed", "optimizer"), COLORS))

DEFAULTS = {"amp": "off", "sync_batchnorm": False, "hosts": 1}  # of stages without these flags
# What compare.py adds; unknown if a stage was run without it.
DEFAULTS |= {"dataset": "unknown data", "device_name": "unknown device", "command_seconds": None}
Record, Row = dict, list[dict]


def dataset_name(test_images: bytes) -> str:
    """-> "MNIST", or "NOT MNIST" for anything else, such as what tools/draw_digits.py draws."""
    checksum = zlib.crc32(test_images)
    return "MNIST" if checksum == 0xE4CA5F57 else f"NOT MNIST ({checksum:08x})"


def read(path: Path) -> list[Record]:
    """Read the records in a file, and add the key "file" to each. Raises ValueError or OSError."""
    if not path.is_file():  # opening a FIFO would wait for a writer
        raise ValueError(f"{path} is not a file of records")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(checked({**json.loads(line), "file": path.stem}))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not a record: {error}") from None
    return found


def checked(record: Record) -> Record:
    """The record, with DEFAULTS for what it lacks. Raises ValueError or TypeError if it is none."""
    record = {**DEFAULTS, **record}
    for key, fits in FORM.items():
        if not fits(record.get(key)):
            raise ValueError(f"{key} is missing or has a wrong value")
    return record


def is_number(value: object, low: float = 0) -> bool:
    """Is it a number that can be set or measured? nan, inf and negative numbers cannot."""
    return type(value) in (int, float) and low <= value < 1e12


def is_history(epochs: object) -> bool:
    """Has each epoch the counts of test images, and the seconds of each phase of each rank?"""
    try:
        for epoch in epochs:
            (correct, total), ranks = epoch["test"], [rank.values() for rank in epoch["phases"]]
            numbers = [correct, total, *(seconds for rank in ranks for seconds in rank)]
            fits = all(map(is_number, numbers)) and correct <= total > 0
            if not fits or min(map(sum, ranks)) < 1e-6:  # no epoch is shorter than a microsecond
                return False
        return len(epochs) > 0
    except (TypeError, ValueError, LookupError, AttributeError):
        return False


TEXTS = ("file", "name", "amp", "device", "dataset", "torch", "host", "device_name")
FORM: dict[str, Callable] = {"stage": STAGES.__contains__, "history": is_history}
FORM |= dict.fromkeys(TEXTS, lambda value: isinstance(value, str) and value.isprintable())
FORM |= dict.fromkeys(("lr", "threads", "workers", "seed"), is_number)
COUNTS = ("images", "world_size", "hosts", "batch_size", "epochs")
FORM |= dict.fromkeys(COUNTS, lambda value: is_number(value, 1))
FORM["sync_batchnorm"] = lambda value: isinstance(value, bool)
FORM["command_seconds"] = lambda value: value is None or is_number(value)


def rows_of(records: Iterable[Record], last: int | None = None) -> list[Row]:
    """Records with equal settings form a row, by stage. Only the `last` records of each count."""
    rows: dict[tuple, Row] = {}
    for record in records:
        rows.setdefault(itemgetter(*RUN, *ALIKE)(record), []).append(record)
    ordered = sorted(rows.values(), key=lambda row: row[0]["name"])
    return [row[-last:] if last else row for row in ordered]


def find(rows: list[Row], name: str, **settings) -> Row:
    """The first row of this name that has these settings, such as batch_size=120."""
    wanted = {"name": name, **settings}.items()
    return next(row for row in rows if wanted <= row[0].items())


def together(rows: list[Row]) -> list[Row]:
    """Make one row of those of stages 3 to 5 that differ in the launcher only; keep the others."""
    found: dict[tuple, Row] = {}
    for row in rows:
        first = row[0]
        launched = first["name"] in STAGES[2:] or (first["name"], first["hosts"])
        key = launched, itemgetter("file", "world_size", *ALIKE)(first)
        found.setdefault(key, []).extend(row)
    for row in found.values():
        if numbers := ", ".join(sorted({record["stage"][1] for record in row})[1:]):
            name = f"DDP: stages {row[0]['stage'][1]}, {numbers}"
            row[:] = [{**record, "name": name, "hosts": 1} for record in row]
    return list(found.values())


def counted(record: Record) -> list[dict]:
    """The epochs that count: the first one of a run warms up, unless it is the only one."""
    return record["history"][1:] or record["history"]


def speed(record: Record) -> float:
    """Images per second over all ranks: the median of the epochs, by their slowest rank."""
    epochs = [max(sum(rank.values()) for rank in epoch["phases"]) for epoch in counted(record)]
    return record["images"] / median(epochs)


def figures(row: Row) -> dict[str, list[float]]:
    """What was measured -> {figure: its values}

    For each epoch that counts, the milliseconds of a step in each phase (mean over the ranks), and
    their sum as "step". For each record, "images/s" and "accuracy" (a fraction, after all epochs).
    """
    found: dict[str, list[float]] = {phase: [] for phase in (*PHASES, "step")}
    for record in row:
        scale = 1000 * min(record["batch_size"], record["images"]) / record["images"]
        for epoch in counted(record):
            for phase in PHASES:
                found[phase].append(scale * mean(rank.get(phase, 0.0) for rank in epoch["phases"]))
            found["step"].append(sum(found[phase][-1] for phase in PHASES))
    tests = [record["history"][-1]["test"] for record in row]
    found["accuracy"] = [correct / total for correct, total in tests]
    return {**found, "images/s": [*map(speed, row)]}


def medians(row: Row) -> dict[str, float]:
    """The median of each of the figures. Tables, pages and pictures all take it from here."""
    return {figure: median(found) for figure, found in figures(row).items()}


def ratios(row: Row, base: Row) -> list[float]:
    """How many times as fast as the base a row is, for each of its repeats."""
    return [speed(record) / speed(other) for record, other in zip(row, cycle(base))]


def differences(record: Record, base: Record, keys: Sequence[str] = ALIKE) -> list[str]:
    """The settings in which two records differ, as text."""
    return [f"{key} {record[key]}, not {base[key]}" for key in keys if record[key] != base[key]]


def spread(found: list[float], form: str = "{:.2f}") -> str:
    """The median as text, with the quartiles if these differ; "-" if there is no value."""
    if not found:
        return "-"
    low, middle, high = quantiles(found, method="inclusive") if len(found) > 1 else 3 * found
    middle, low, high = map(form.format, (middle, low, high))
    return middle if low == high else f"{middle} ({low}-{high})"


def about(rows: list[Row]) -> str:
    """What the rows have in common, and what a reader must know before reading their figures."""
    first = rows[0][0]
    text = (
        f"{first['dataset']}, {first['batch_size']} images per step, {first['epochs']} epoch(s), "
        f"{first['threads']} thread(s) per rank, torch {first['torch']}, {first['device_name']}"
    )
    if first["device"] == "cpu":
        text += "\nOne CPU core stands in for one device. On GPUs the ratios differ."
    if len({record["stage"] for row in rows for record in row} & set(STAGES[2:])) > 1:
        text += "\nStages 3, 4 and 5 run the same training step. They differ by noise only."
    if any(len(row) > 1 for row in rows):
        text += "\nFigures are medians (with quartiles). A ratio is formed in each repeat."
    return text


def label(rows: list[Row], record: Record) -> str:
    """The row's name, and the settings in which it differs from the first row."""
    keys = (*SETTINGS, *WAYS, "dataset", "torch", "device_name", "host", "file")
    changed = [f"{key} {record[key]}" for key in keys if record[key] != rows[0][0][key]]
    return ", ".join([record["name"], *changed])


def speed_table(rows: list[Row]) -> str:
    """A line per row: images per second, ratio to the base, accuracy, seconds of the command.

    The base of a row has the name of the first row, and the settings of the row. A row without a
    base gets no ratio, and a note says why.
    """
    top, lines, notes = rows[0][0], [], {}
    bases = [row for row in rows if not differences(row[0], top, RUN[1:])]  # of any file
    alike = itemgetter(*ALIKE)
    base_of = {alike(base[0]): base for base in reversed(bases)}
    for row in rows:
        first, measured = row[0], figures(row)
        base = base_of.get(alike(first))
        found = ratios(row, base) if base else []
        each = [median(found) * base[0]["world_size"] / first["world_size"]] if base else []
        note = ""
        if not base:
            differ = min((differences(first, other[0]) for other in bases), key=len)
            note = f"{', '.join(differ)}: no ratio to {top['name']}"
        elif each[0] > 1.005:
            note = "above 100 %: noise (try --repeat), or the smaller shards fit into a cache"
        elif min(found) < 1 < max(found):
            note = "no difference can be seen: some repeats were faster, some slower"
        number = f"({notes.setdefault(note, len(notes) + 1)})" if note else ""
        nodes = f" on {first['hosts']} nodes" if first["hosts"] > 1 else ""
        seconds = [r["command_seconds"] for r in row if r["command_seconds"] is not None]
        lines.append(
            [
                label(rows, first),
                f"{first['world_size']}{nodes}",
                spread(measured["images/s"], "{:,.0f}"),
                spread(found),
                spread(each, "{:.0%}"),
                spread(measured["accuracy"], "{:.2%}"),
                f"{median(seconds):.1f}" if seconds else "-",
                number,
            ]
        )
    titles = ["", "devices", "images/s", f"x {top['name']}", "per device", "accuracy"]
    align = ("left", *["right"] * 6, "left")
    table = tabulate(lines, [*titles, "command (s)", ""], colalign=align, disable_numparse=True)
    return "\n".join([table, *(f"({number}) {note}" for note, number in notes.items())])


def phase_table(rows: list[Row]) -> str:
    """Where a step's time goes, in milliseconds: medians over epochs and repeats."""
    lines = []
    for row in rows:
        cells = {name: f"{middle:.2f}" for name, middle in medians(row).items()}
        if "exposed" not in row[0]["history"][0]["phases"][0]:  # no other ranks to wait for
            cells["exposed"] = "-"
        lines.append([label(rows, row[0]), *(cells[phase] for phase in (*PHASES, "step"))])
    titles = ["milliseconds per step", *PHASES, "step"]
    return tabulate(lines, titles, colalign=("left", *["right"] * 6), disable_numparse=True)

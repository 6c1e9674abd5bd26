"""Records of runs: reading a file of them, and the figures and tables that are made of them.

A record is one line of JSON, which a stage has appended to a file. A row is a list of records with
equal settings: the repeats of a run, in the order of the file.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from statistics import mean, median, quantiles

from tabulate import tabulate

from lib.processes import KEEP_MEMORY

STAGES = ("01_baseline", "02_dp", "03_ddp_spawn", "04_ddp_torchrun", "05_multinode")
SETTINGS = ("batch_size", "epochs", "lr", "threads", "workers", "seed")
WAYS = ("amp", "sync_batchnorm")  # settings that only some stages have
# Two rows that differ in one of these did other work, or did it on another machine.
ALIKE = ("images", *SETTINGS, *WAYS, "device", "dataset", "torch", "host", "device_name")
# The kind of parallelism. Two rows that differ only in this can be compared.
KIND = ("stage", "world_size", "hosts", "backend")
SAME = (*ALIKE, *KIND)  # all of them
# A run that got less of the processor time that it asked for was disturbed, by other programs or by
# itself. An idle machine gives all but one or two percent.
LEAST_SHARE = 0.95
# Several threads of one process also wait for each other. Two threads on an idle machine got 89 %.
LEAST_SHARE_OF_THREADS = 0.8
# Two runs whose page faults in a step differ by more than this: the memory of one of them was
# returned to the system after each step. A run that keeps its memory has close to none.
MOST_FAULTS_APART = 300
# What a stage does not write because it has no such flag.
DEFAULTS = {"amp": "off", "sync_batchnorm": False, "backend": None}
# Okabe and Ito's colours, which the colour-blind can tell apart.
PHASES = {
    "data": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exposed": "#D55E00",
    "optimizer": "#E69F00",
}
SMALL_MODEL = (
    "This model is small: DDP has to average only 116 kB of gradients in each step.\n"
    "benchmarks/README.md measures larger models."
)
# What Python raises if a line is no JSON, or if a value is missing or is of another kind.
WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
Record = dict
Row = list[dict]


# ---------------------------------------------------------------- reading


def read(path: Path) -> list[Record]:
    """Read the records in a file. Raises OSError, or ValueError for a line that is no record."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(record_of(line, path))
        except WRONG as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}, line {number} is not a record: {reason}") from None
    return found


def record_of(line: str | bytes, path: Path) -> Record:
    """Make the record from a line of this file. Raises one of WRONG if the line is no record."""
    record = {**DEFAULTS, **json.loads(line), "file": str(path)}
    # A record is what tables can be made of. Trying it here tells which line is wrong.
    tables(rows_of([record]))
    return record


def rows_of(records: Iterable[Record], last: int | None = None) -> list[Row]:
    """Records with equal settings form a row, by stage. Only the `last` records of each count."""
    settings = itemgetter("file", *KIND, *ALIKE)
    rows: dict[tuple, Row] = {}
    for record in records:
        rows.setdefault(settings(record), []).append(record)
    ordered = sorted(rows.values(), key=lambda row: row[0]["stage"])
    if last is None:
        return ordered
    return [row[-last:] for row in ordered]


def find(rows: list[Row], stage: str, **settings) -> Row:
    """The first row of this stage that has these settings, such as batch_size=120."""
    wanted = {"stage": stage, **settings}.items()
    return next(row for row in rows if wanted <= row[0].items())


def together(rows: list[Row]) -> list[Row]:
    """Make one row of those of stages 3 to 5 that differ in the launcher only; keep the others."""
    settings = itemgetter("file", "world_size", "backend", *ALIKE)
    found: dict[tuple, Row] = {}
    for row in rows:
        first = row[0]
        if first["stage"] in STAGES[2:]:
            work = "DDP"
        else:
            work = (first["stage"], first["hosts"])
        found.setdefault((work, settings(first)), []).extend(row)
    return list(found.values())


# ---------------------------------------------------------------- figures


def milliseconds_per_step(phases: dict[str, float], steps: float) -> dict[str, float]:
    """The seconds of each phase in so many steps -> the milliseconds of one step in each phase."""
    return {phase: 1000 * seconds / steps for phase, seconds in phases.items()}


def counted(record: Record) -> list[dict]:
    """The epochs that count: the first one of a run warms up, unless it is the only one."""
    return record["history"][1:] or record["history"]


def speed(record: Record) -> float:
    """Images per second over all ranks: the median of the epochs, by their slowest rank."""
    seconds = []
    for epoch in counted(record):
        seconds.append(max(sum(phases.values()) for phases in epoch["phases"]))
    return record["images"] / median(seconds)


def processor_share(record: Record) -> float:
    """How much of the processor time that they asked for did the ranks of a run get? At most 1.

    On a CPU a rank computes all the time, except in the phase in which it waits for other ranks
    ("exposed"). The rank that got the smallest share counts. On a GPU, and with loader workers, a
    rank also waits for these, so nothing can be said, and 1 is returned.
    """
    if record["device"] != "cpu" or record["workers"] > 0:
        return 1.0
    threads = threads_of(record)
    smallest = 1.0
    for epoch in counted(record):
        if "cpu" not in epoch:  # A record of an older version of the stages.
            continue
        for phases, cpu_seconds in zip(epoch["phases"], epoch["cpu"]):
            asked = sum(phases.values()) - phases.get("exposed", 0.0)
            # Forward and backward are the phases in which all threads compute.
            asked += (threads - 1) * (phases["forward"] + phases["backward"])
            smallest = min(smallest, cpu_seconds / asked)
    return smallest


def faults_per_step(row: Row) -> float | None:
    """The page faults of a step of the rank that has most: the median of the epochs that count.

    None if the records do not have them, or if a run has one epoch only: in the first epoch every
    run asks for the memory that it then keeps.
    """
    found = []
    for record in row:
        steps = record["images"] / min(record["batch_size"], record["images"])
        for epoch in record["history"][1:]:
            if "faults" in epoch:
                found.append(max(epoch["faults"]) / steps)
    return median(found) if found else None


def threads_of(record: Record) -> int:
    """How many threads stand in for devices in each process of a run? 1, except in stage 2."""
    processes = len(record["history"][0]["phases"])
    return record["world_size"] // processes


def disturbed(row: Row) -> float | None:
    """The share of the processor that a rank of the row got, if a run was disturbed; else None."""
    share = min(processor_share(record) for record in row)
    least = LEAST_SHARE if threads_of(row[0]) == 1 else LEAST_SHARE_OF_THREADS
    return share if share < least else None


def figures(row: Row) -> dict[str, list[float]]:
    """What was measured -> {figure: its values}

    For each epoch that counts, the milliseconds of a step in each phase (mean over the ranks), and
    their sum as "step". For each record, "images/s" and "accuracy" (a fraction, after all epochs).
    """
    names = (*PHASES, "step", "images/s", "accuracy")
    found: dict[str, list[float]] = {name: [] for name in names}
    for record in row:
        steps = record["images"] / min(record["batch_size"], record["images"])
        for epoch in counted(record):
            ranks = [milliseconds_per_step(phases, steps) for phases in epoch["phases"]]
            step = 0.0
            for phase in PHASES:
                milliseconds = mean(rank.get(phase, 0.0) for rank in ranks)
                found[phase].append(milliseconds)
                step += milliseconds
            found["step"].append(step)
        correct, total = record["history"][-1]["test"]
        found["accuracy"].append(correct / total)
        found["images/s"].append(speed(record))
    return found


def medians(row: Row) -> dict[str, float]:
    """The median of each of the figures. Tables, pages and pictures all take it from here."""
    return {figure: median(found) for figure, found in figures(row).items()}


def ratios(row: Row, base: Row) -> list[float]:
    """How many times as fast as the base a row is, for each of its repeats."""
    return [speed(record) / speed(other) for record, other in zip(row, cycle(base))]


def differences(record: Record, base: Record, keys: Sequence[str] = ALIKE) -> list[str]:
    """The settings in which two records differ, as text."""
    found = []
    for key in keys:
        if record[key] != base[key]:
            found.append(f"{key} is {record[key]} here and {base[key]} there")
    return found


# ---------------------------------------------------------------- tables


def tables(rows: list[Row]) -> str:
    """All that is printed about the rows: what they have in common, and the two tables."""
    parts = [about(rows), speed_table(rows), phase_table(rows)]
    if any(row[0]["world_size"] > 1 for row in rows):
        parts.append(SMALL_MODEL)
    return "\n\n".join(parts)


def about(rows: list[Row]) -> str:
    """What the rows have in common, and what a reader must know before reading their figures."""
    first = rows[0][0]
    text = (
        f"{first['dataset']}, {first['batch_size']} images per step, {first['epochs']} epoch(s), "
        f"{first['threads']} thread(s) per rank, torch {first['torch']}, {first['device_name']}"
    )
    if first["device"] == "cpu":
        text += "\nOne CPU core stands in for one device. On GPUs the ratios differ."
    stages = set()
    for row in rows:
        stages.update(record["stage"] for record in row)
    if len(stages.intersection(STAGES[2:])) > 1:
        text += "\nStages 3, 4 and 5 run the same training step. They differ by noise only."
    if any(len(row) > 1 for row in rows):
        text += "\nFigures are medians (with quartiles). "
        text += "Each ratio compares two runs of one round."
    return text


def name_of(row: Row) -> str:
    """The stage of a row, or those that together() has put into it."""
    stages = sorted({record["stage"] for record in row})
    if len(stages) == 1:
        return stages[0]
    return f"DDP: stages {', '.join(stage[1] for stage in stages)}"


def label(rows: list[Row], row: Row) -> str:
    """The row's name, and the settings in which it differs from the first row."""
    first = row[0]
    top = rows[0][0]
    parts = [name_of(row)]
    for key in (*SETTINGS, *WAYS, "dataset", "torch", "device_name", "host", "file"):
        if first[key] != top[key]:
            parts.append(f"{key} {first[key]}")
    backends = {other[0]["backend"] for other in rows} - {None}  # stages 1 and 2 have none
    if len(backends) > 1 and first["backend"] is not None:
        parts.append(first["backend"])
    return ", ".join(parts)


def spread(found: list[float], form: str = "{:.2f}") -> str:
    """The median as text, with the quartiles if these differ; "-" if there is no value."""
    if not found:
        return "-"
    if len(found) == 1:
        return form.format(found[0])
    low, middle, high = [form.format(value) for value in quantiles(found, method="inclusive")]
    if low == high:
        return middle
    return f"{middle} ({low}-{high})"


def candidates(rows: list[Row]) -> list[Row]:
    """The rows that a ratio can be formed with: those of the first row's kind, of any file."""
    return [row for row in rows if not differences(row[0], rows[0][0], KIND)]


def base_of(row: Row, rows: list[Row]) -> Row | None:
    """The row that the ratios of this one refer to, or None.

    It is the first of the candidates that has the same settings. A row with mixed precision refers
    to the row that differs in nothing else. A row that was disturbed has no base and is none. A row
    is its own base only if it is the first one, or if another row with its settings refers to it.
    """
    if disturbed(row) is not None:
        return None
    if in_mixed_precision(row):
        for base in rows:
            if disturbed(base) is None and not differences({**row[0], "amp": "off"}, base[0], SAME):
                return base
    for base in candidates(rows):
        if disturbed(base) is None and not differences(row[0], base[0]):
            others = [other for other in rows if not differences(other[0], base[0])]
            if base is row and row is not rows[0] and len(others) == 1:
                return None
            return base
    return None


def in_mixed_precision(row: Row) -> bool:
    return row[0]["amp"] != "off"


def speed_table(rows: list[Row]) -> str:
    """A line per row: images per second, ratio to the base, accuracy.

    The base of a row has the kind of the first row, and the settings of the row. A row without a
    base gets no ratio, and a note says why. The ratio of a row with mixed precision is marked.
    """
    lines = []
    notes = []
    for row in rows:
        first = row[0]
        devices = str(first["world_size"])
        if first["hosts"] > 1:
            devices += f" on {first['hosts']} nodes"
        found = []
        per_device = []
        base = base_of(row, rows)
        if base is not None:
            found = ratios(row, base)
            per_device = [median(found) * base[0]["world_size"] / first["world_size"]]
        ratio = spread(found)
        if base is not None and in_mixed_precision(row) and not in_mixed_precision(base):
            ratio += " x fp32"
            per_device = []
        note = note_on(row, rows, base, found, per_device)
        number = ""
        if note:
            if note not in notes:
                notes.append(note)
            number = f"({notes.index(note) + 1})"
        measured = figures(row)
        line = [
            label(rows, row),
            devices,
            spread(measured["images/s"], "{:,.0f}"),
            ratio,
            spread(per_device, "{:.0%}"),
            spread(measured["accuracy"], "{:.2%}"),
            number,
        ]
        lines.append(line)
    titles = ["", "devices", "images/s", f"x {name_of(rows[0])}", "per device", "accuracy", ""]
    align = ("left", *["right"] * 5, "left")
    text = tabulate(lines, titles, colalign=align, disable_numparse=True)
    for number, note in enumerate(notes, start=1):
        text += f"\n({number}) {note}"
    return text


def note_on(
    row: Row, rows: list[Row], base: Row | None, found: list[float], per_device: list[float]
) -> str:
    """What a reader must know about the ratios of a row, or why there are none; else ""."""
    share = disturbed(row)
    if share is not None:
        return (
            f"disturbed: a rank got {share:.0%} of the processor time that it asked for, because "
            "other programs ran or there are more ranks than cores: no ratio (try --repeat)"
        )
    if base is None:
        others = [other for other in candidates(rows) if other is not row]
        differ = min((differences(row[0], other[0]) for other in others), key=len, default=[])
        name = name_of(rows[0])
        if not differ:
            return f"no ratio to {name}, because other programs disturbed the run of {name}"
        return f"no ratio to {name}, because of other settings: {', '.join(differ)}"
    apart = faults_apart(row, base)
    if apart:
        return apart
    if not per_device:
        return "compared with the same stage without --amp, which computes in fp32"
    if per_device[0] > 1.005 and row[0]["world_size"] == 1:
        return "above 100 % on one device: noise, or a slow start of the first run (try --repeat)"
    if per_device[0] > 1.005:
        return "above 100 %: noise (try --repeat), or the smaller shards fit into a cache"
    if min(found) < 1 < max(found):
        return "no difference can be seen: some repeats were faster, some slower"
    return ""


def faults_apart(row: Row, base: Row) -> str:
    """A note if one of the two rows returned its memory after each step; else ""."""
    own = faults_per_step(row)
    other = faults_per_step(base)
    if own is None or other is None or abs(own - other) <= MOST_FAULTS_APART:
        return ""
    name = name_of(row) if own > other else f"The base {name_of(base)}"
    return (
        f"{name} had {max(own, other):,.0f} page faults in a step, and the other row "
        f"{min(own, other):,.0f}: its memory was returned to the system after each step. Set "
        f"{' '.join(f'{name}={value}' for name, value in KEEP_MEMORY.items())} for both runs, as "
        "compare.py does"
    )


def phase_table(rows: list[Row]) -> str:
    """Where a step's time goes, in milliseconds: medians over epochs and repeats."""
    lines = []
    for row in rows:
        middle = medians(row)
        line = [label(rows, row)]
        for phase in (*PHASES, "step"):
            line.append(f"{middle[phase]:.2f}")
        if "exposed" not in row[0]["history"][0]["phases"][0]:  # no other ranks to wait for
            line[1 + list(PHASES).index("exposed")] = "-"
        lines.append(line)
    titles = ["milliseconds per step", *PHASES, "step"]
    return tabulate(lines, titles, colalign=("left", *["right"] * 6), disable_numparse=True)

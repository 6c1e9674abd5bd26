"""Where does the time of a step go? The report of the verb `speed`: figures, words, a picture.

What one rank takes alone is not in the run of several ranks. It comes from a second run, on one
rank, whose figures are in its --json file: `alone` is what measure() returned there.
"""

import textwrap
from math import log
from statistics import median, quantiles

from . import judge
from .costs import COSTS
from .pace import PAUSE, PHASES

FEWEST = 10  # regular steps
SPREAD = 0.3  # of the efficiency: if the middle half of the steps spreads more, it says little
# Okabe and Ito's: the phases that compare.py draws, too, have the same colours there.
COLORS = {
    "data": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exposed": "#D55E00",
    "optimizer": "#E69F00",
    "collective": "#CC79A7",
    "saving": "#F0E442",
    "own": "#009E73",
    "no core": "#DDDDDD",
}
COLUMNS = (*COLORS, "step")
ONE_RANK = "ddp-doctor speed --json alone.json torchrun --standalone --nproc-per-node 1 SCRIPT"
HOW_TO_KNOW = (
    "What one rank takes alone, and so the efficiency, is not known. Run your script on one rank "
    "with the same batch per rank, and then this command again with --alone alone.json:"
)


# ------------------------------------------------------------------ the figures


def measure(pace):
    """-> all figures, times of a step in milliseconds; None if there are too few steps."""
    if pace is None or len(pace.rows) < FEWEST:
        return None
    low, _, high = quantiles(pace.step_times, n=4)
    made = [step for step in pace.zero.steps.values() if not step.laps.last]
    figures = {
        "ranks": table_of(pace),
        "steps": {"all": len(made), "regular": len(pace.rows)},
        "step": milliseconds(pace.step),
        "middle half": [milliseconds(low), milliseconds(high)],
        "work": milliseconds(pace.fastest),
        "imbalance": milliseconds(pace.imbalance),
        "communication": milliseconds(pace.communication),
        "samples": pace.samples,
        "pause": pause_of(pace),
        "seconds": seconds_of(pace.zero),
        "gpu": pace.zero.reducer is not None and pace.zero.reducer.on_gpu,
        "findings": [vars(one) for one in judge.findings(pace)],
    }
    if pace.zero.looks is not None:
        figures["threads"] = pace.zero.looks.threads
        figures["cores"] = pace.zero.looks.cores
    figures["predicted"] = prediction(pace)
    return figures


def milliseconds(seconds):
    return round(1000 * seconds, 3)


def table_of(pace):
    """{number of the rank: {column: median over the regular steps}}"""
    table = {}
    for position, rank in enumerate(pace.ranks):
        row = {}
        for phase in PHASES:
            row[phase] = pace.of_rank(position, lambda step, phase=phase: step.phases[phase])
        row["no core"] = pace.of_rank(position, lambda step: step.laps.no_core)
        row["step"] = pace.of_rank(position, lambda step: step.time)
        table[str(rank.number)] = {name: milliseconds(value) for name, value in row.items()}
    return table


def pause_of(pace):
    """Between two epochs, in milliseconds: the median over epochs, of the rank that pauses least.

    {} if there was only one epoch.
    """
    if not all(rank.pauses for rank in pace.ranks):
        return {}
    least = min(pace.ranks, key=lambda rank: median(step.pause for step in rank.pauses))
    names = {"first batch": "data", "between": "own"}
    row = {}
    for phase in PAUSE:
        row[names[phase]] = milliseconds(median(step.phases[phase] for step in least.pauses))
    row["step"] = milliseconds(median(step.pause for step in least.pauses))
    return row


def seconds_of(rank):
    """For what did the whole run take how long, on this rank?"""
    pauses = sum(step.pause for step in rank.steps.values() if not step.laps.last)
    return {
        "start-up": round(rank.start_up, 2),
        "training": round(rank.training - pauses, 2),
        "between epochs": round(pauses, 2),
        "evaluation": round(rank.total("evaluation"), 2),
        "saving": round(rank.total("saving"), 2),
    }


def prediction(pace):
    """{twice as many ranks, on this machine: milliseconds of a step, from and to}

    Low: communication is limited by the bandwidth, and a ring of more ranks sends little more.
    High: it is limited by the latency, and the slowest of more ranks is slower by chance, too. A
    rank that is always slow does not become slower by that.
    """
    count = len(pace.ranks)
    if count < 2 or pace.zero.looks is None:
        return {}
    more = 2 * count
    low, _, high = quantiles(pace.step_times, n=4)
    average = max(0.0, pace.communication)
    chance = max(0.0, pace.slowest - max(pace.works))
    low += average * ((1 - 1 / more) / (1 - 1 / count) - 1)
    high += average * ((more - 1) / (count - 1) - 1)
    high += chance * (log(more) / log(count) - 1)
    # Where the cores are too few the ranks take turns.
    processor = median(step.laps.processor for row in pace.rows for step in row)
    cores = pace.zero.looks.cores
    turns = processor * (max(1, more / cores) - max(1, count / cores))
    return {str(more): [milliseconds(low + turns), milliseconds(high + turns)]}


def split(figures, alone):
    """{part: milliseconds}. The parts of a step add up to its median."""
    parts = {}
    if alone:
        expected = alone["work"] * batch_ratio(figures, alone)
        parts["one rank alone"] = expected
        parts["shared cores and memory"] = figures["work"] - expected
    else:
        parts["work of the rank with least of it"] = figures["work"]
    parts["imbalance"] = figures["imbalance"]
    parts["communication"] = figures["communication"]
    return parts


def batch_ratio(figures, alone):
    """Samples per step and rank here, next to those of the one rank; 1 if nobody knows."""
    if not figures["samples"] or not alone["samples"]:
        return 1.0
    return figures["samples"] / alone["samples"]


# ------------------------------------------------------------------ the words


def show_too_little(run, pace):
    """What to print if measure() has no figures."""
    regular = len(pace.rows) if pace else 0
    text = f"{len(run.ranks)} rank(s), and {regular} regular steps that all of them made"
    wrapped(f"Too little to measure: {text}. At least {FEWEST} are needed.")


def show(figures, alone):
    """figures: what measure() gave; alone: the same for one rank, or None."""
    if alone and len(alone.get("ranks", ())) != 1:
        wrapped("--alone: this file is not that of a run on one rank. It is not used.")
        alone = None
    seconds = [f"{name} {value:.1f}" for name, value in figures["seconds"].items() if value >= 0.05]
    wrapped(f"Seconds of rank 0: {', '.join(seconds)}.")
    show_table(figures)
    show_cores(figures)
    show_parts(figures, alone)
    for one in figures["findings"]:
        share = one["ms"] / figures["step"]
        text = f"{one['ms']:.2f} ms of a step ({share:.0%}): {one['seen']}."
        wrapped(f"[{one['key']}] {one['at']}: {text}")
        words = COSTS[one["key"]]
        print(textwrap.fill(f"{words.why} See {words.page}", 100, initial_indent="  "))
    if not figures["findings"]:
        wrapped("Nothing was found that costs 1 ms and 2 % of a step.")


def wrapped(text):
    print("\n" + textwrap.fill(text, 100))


def show_table(figures):
    steps = figures["steps"]
    ranks = figures["ranks"]
    wrapped(f"Medians of the {steps['regular']} regular steps of {steps['all']}:")
    shown = columns_of(ranks)
    print("\nms per step    " + "".join(f"{name:>11}" for name in shown))
    for number, row in ranks.items():
        print(f"rank {number:<10}" + "".join(f"{row[name]:11.2f}" for name in shown))
    pause = figures["pause"]
    if pause:
        cells = [f"{pause[name]:11.2f}" if name in pause else " " * 11 for name in shown]
        print("between epochs " + "".join(cells))


def columns_of(ranks):
    """The columns in which some rank has a time."""
    shown = []
    for name in COLUMNS:
        if any(row[name] for row in ranks.values()):
            shown.append(name)
    return shown


def show_cores(figures):
    without_core = min(row["no core"] for row in figures["ranks"].values())
    if without_core > 0.1 * figures["step"]:
        threads = f"{len(figures['ranks'])} ranks with {figures.get('threads', '?')} threads each"
        text = f"{threads} share {figures.get('cores', '?')} cores"
        wrapped(f"Often no core was free: {text}. End other programs, or start fewer threads.")


def show_parts(figures, alone):
    if len(figures["ranks"]) < 2:
        return
    parts = split(figures, alone)
    sums = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    text = f"A step in ms: {sums} = {sum(parts.values()):.2f}."
    if alone:
        text = f"{efficiency_in_words(figures, parts['one rank alone'])} {text}"
    wrapped(text)
    if alone:
        show_batches(figures, alone)
    else:
        wrapped(HOW_TO_KNOW)
        print(f"  {ONE_RANK}")
    for more, (low, high) in figures["predicted"].items():
        wrapped(
            f"Predicted for {more} ranks on this machine: {low:.1f} to {high:.1f} ms per step. "
            "This assumes the same work per rank, a ring all-reduce, no more memory traffic, and "
            "ranks that share cores if there are too few."
        )


def show_batches(figures, alone):
    """Say so if one rank had another batch."""
    if abs(batch_ratio(figures, alone) - 1) > 0.02:
        samples = f"{alone['samples']:.0f} samples in a step, and a rank here"
        text = f"The one rank had {samples} has {figures['samples']:.0f}"
        wrapped(f"{text}: its time is taken per sample, which is not exact.")


def efficiency_in_words(figures, alone_ms):
    low, high = [alone_ms / value for value in reversed(figures["middle half"])]
    text = f"Efficiency {alone_ms / figures['step']:.0%}"
    if high - low > SPREAD:
        return f"{text}, but the steps differ too much to rely on it ({low:.0%} to {high:.0%})."
    return f"{text} ({low:.0%} to {high:.0%} in the middle half of the steps)."


# ------------------------------------------------------------------ the picture


def draw(figures, path):
    """A bar per rank: the phases of a step. It needs matplotlib."""
    from matplotlib.figure import Figure

    ranks = figures["ranks"]
    figure = Figure(figsize=(10, 1.5 + 0.4 * len(ranks)), layout="constrained")
    axes = figure.subplots()
    names = [f"rank {number}" for number in ranks]
    ends = [0.0] * len(ranks)
    for phase, color in COLORS.items():
        widths = [row[phase] for row in ranks.values()]
        if any(widths):
            axes.barh(names, widths, 0.6, ends, color=color, label=phase)
        ends = [end + width for end, width in zip(ends, widths)]
    axes.set(xlabel="milliseconds of a step", ylim=(len(ranks) - 0.4, -0.6))
    figure.legend(loc="outside upper left", ncols=len(COLORS), columnspacing=1, frameon=False)
    figure.savefig(path, dpi=200)
    print(f"\npicture: {path}")

"""When does a second device pay? First the batch is changed, then the width of the net.

Each step is one of the stages: stage 1's in one process, stage 2's on two threads (its DataParallel
from scratch), and stage 3's on two ranks. Everything else stays as it is there (240 images per
step, one thread per device, fp32); the batches are in memory. All is measured `--repeats` times,
interleaved. The milliseconds are medians. A ratio is formed within each repeat, and shown as median
(smallest to largest).

    python -m benchmarks.sweep
    python -m benchmarks.sweep --repeats 1 --steps 3
"""

import importlib
import statistics
import time

import torch
import torch.distributed as dist
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common
from lib import pictures

stage2 = importlib.import_module("02_dp.train")
threads = importlib.import_module("02_dp.from_scratch")

DEFAULTS = {"batch": 240, "width": 1}  # as in the stages
SWEEPS = {  # what is changed -> its values
    "batch": [16, 30, 60, 120, 240, 480],
    "width": [1, 2, 4],
}
UNITS = {"batch": "images per step", "width": "times the channels"}
ONE = "one process"
THREADS = "two threads"
DDP = "DDP, two ranks"
WAYS = {ONE: "#757b83", THREADS: "#b8860b", DDP: "#2f7ed8"}  # and their colours in the picture


def main() -> None:
    parser = common.flags(__doc__, steps=20)
    parser.add_argument("--repeats", type=int, default=5, help="how often all is measured (5)")
    args = common.parse(parser, repeats=1, steps=1)
    repeats = []  # [{way: {(sweep, value): milliseconds of a step}}]
    for _ in range(args.repeats):
        (found,) = common.on_ranks(1, measure_in_one_process, args.steps)
        found[DDP] = common.on_ranks(2, measure, DDP, args.steps)[0]
        repeats.append(found)
    results = {"about": f"{common.about()}, {args.repeats} repeat(s)"} | summary(repeats)
    common.show(args, "sweep", results, report)
    if args.results:
        (args.results / "sweep.png").write_bytes(pictures.png(draw(results)))


# ---------------------------------------------------------------- measuring


def measure_in_one_process(steps: int) -> dict[str, dict[tuple, float]]:
    """-> {way: {(sweep, value): milliseconds of a step}} of the two ways without ranks"""
    return {way: measure(way, steps) for way in (ONE, THREADS)}


def measure(way: str, steps: int) -> dict[tuple, float]:
    """-> {(sweep, value): milliseconds of a step, of the slowest rank}"""
    common.evaluate_once()
    found = {}
    for sweep, values in SWEEPS.items():
        for value in values:
            if sweep != "batch" and value == DEFAULTS[sweep]:  # measured as a batch already
                found[sweep, value] = found["batch", DEFAULTS["batch"]]
                continue
            step = torch.tensor(milliseconds(way, DEFAULTS | {sweep: value}, steps))
            dist.all_reduce(step, dist.ReduceOp.MAX)
            found[sweep, value] = step.item()
    return found


def milliseconds(way: str, settings: dict, steps: int) -> float:
    """Mean milliseconds of a step under the settings on this rank."""
    model = common.wider_net(settings["width"])
    optimizer, schedule = common.scheduled_sgd(model, 0.01, 3 + steps)
    batches = common.batches(1, settings["batch"] // dist.get_world_size())
    if way == DDP:
        model = DistributedDataParallel(model)
        train_epoch = common.train_epoch
    else:
        if way == THREADS:
            model = threads.DataParallel(model, [common.CPU] * 2)
        train_epoch = in_one_process
    train_epoch(model, batches * 3, optimizer, schedule)  # DDP has its buckets after two steps
    dist.barrier()
    began = time.perf_counter()
    train_epoch(model, batches * steps, optimizer, schedule)
    return 1000 * (time.perf_counter() - began) / steps


def in_one_process(model, batches: list, optimizer, schedule) -> None:
    """The steps of stages 1 and 2, which have the same loop."""
    stage2.train_epoch(model, batches, optimizer, schedule, common.CPU)


# ---------------------------------------------------------------- what came out


def summary(repeats: list[dict]) -> dict:
    """-> {"repeats": {sweep: {value: {way: milliseconds of a step in each repeat}}}}"""
    found = {}
    for sweep, value in repeats[0][ONE]:
        row = {}
        for way in WAYS:
            row[way] = [repeat[way][sweep, value] for repeat in repeats]
        found.setdefault(sweep, {})[str(value)] = row
    return {"repeats": found}


def report(results: dict) -> str:
    """For each sweep a table with a line per value."""
    lines = [results["about"], "milliseconds of a step, and how many times as fast as one process"]
    for sweep, rows in results["repeats"].items():
        titles = [UNITS[sweep], *WAYS, "threads / one", "DDP / one"]
        cells = []
        for value, row in rows.items():
            times = [f"{statistics.median(row[way]):.2f}" for way in WAYS]
            ratios = [against(row[ONE], row[way]) for way in (THREADS, DDP)]
            cells.append([value, *times, *ratios])
        lines += ["", common.table(titles, cells)]
    return "\n".join(lines)


def against(base: list[float], own: list[float]) -> str:
    """How many times as fast as the base: the median of the repeats, smallest and largest."""
    ratios = [a / b for a, b in zip(base, own)]
    text = f"{statistics.median(ratios):.2f}"
    if len(ratios) > 1:
        text += f" ({min(ratios):.2f} to {max(ratios):.2f})"
    return text


@rc_context(pictures.INK)
def draw(results: dict) -> Figure:
    """Images per second against images per step, a line for each way."""
    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.subplots()
    rows = results["repeats"]["batch"]
    sizes = [int(value) for value in rows]
    for way, color in WAYS.items():
        rates = []
        for size, row in zip(sizes, rows.values()):
            rates.append(1000 * size / statistics.median(row[way]))
        axes.plot(sizes, rates, "o-", color=color, label=way)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="images per step, all devices together", ylabel="images per second")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(results["about"], x=0.01, ha="left", fontsize=9)
    return figure


if __name__ == "__main__":
    main()

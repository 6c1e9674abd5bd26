"""When do two ranks begin to win? First the batch is changed, then the width of the net.

Everything else stays as it is in the stages (240 images per step, one thread per rank, fp32).
Steps are taken by stage 3's own `train_epoch` on batches in memory, on 1, 2 and 4 ranks. All is
measured `--repeats` times, interleaved. The milliseconds are medians. A ratio is formed within each
repeat, and shown as median (smallest to largest).

    python -m benchmarks.sweep
    python -m benchmarks.sweep --repeats 1 --steps 3
"""

import statistics

import torch
import torch.distributed as dist

from benchmarks import common
from lib import records

RANKS = (1, 2, 4)
AS_EVER = {"batch": 240, "width": 1}
SWEEPS = {  # what is changed -> its values
    "batch": [24, 60, 120, 240, 480, 960],
    "width": [1, 2, 4],
}
UNITS = {"batch": "images per step", "width": "times the channels"}


def main() -> None:
    parser = common.flags(__doc__, steps=10)
    parser.add_argument("--repeats", type=int, default=3, help="how often all is measured (3)")
    args = common.parse(parser, repeats=1, steps=1)
    repeats = []  # [{ranks: {(sweep, value): milliseconds of a step, of the slowest rank}}]
    for _ in range(args.repeats):
        repeats.append({n: common.on_ranks(n, sweep_on_rank, args.steps)[0] for n in RANKS})
    results = {"about": f"{common.about()}, {args.repeats} repeat(s)"} | summary(repeats)
    common.show(args, "sweep", results, report)


# ---------------------------------------------------------------- measuring


def sweep_on_rank(steps: int) -> dict[tuple, float]:
    """On each of the ranks -> {(sweep, value): milliseconds of a step}"""
    found = {}
    for sweep, values in SWEEPS.items():
        for value in values:
            if sweep != "batch" and value == AS_EVER[sweep]:  # the stages' setting: once is enough
                found[sweep, value] = found["batch", AS_EVER["batch"]]
                continue
            step = torch.tensor(milliseconds(AS_EVER | {sweep: value}, steps))
            dist.all_reduce(step, dist.ReduceOp.MAX)
            found[sweep, value] = step.item()
    return found


def milliseconds(settings: dict, steps: int) -> float:
    """Mean milliseconds of a step under the settings on this rank."""
    model = common.wider_net(settings["width"])
    optimizer, schedule = common.scheduled_sgd(model, 0.01, 3 + steps)
    if dist.get_world_size() > 1:
        model = common.ddp(model)
    loader = common.batches(1, settings["batch"] // dist.get_world_size())
    common.train_epoch(model, loader * 3, optimizer, schedule)  # DDP has its buckets after two
    watch = common.train_epoch(model, loader * steps, optimizer, schedule)
    return sum(records.milliseconds_per_step(watch.seconds(), steps).values())


# ---------------------------------------------------------------- what came out


def summary(repeats: list[dict]) -> dict:
    """-> {"repeats": {sweep: {value: {ranks: milliseconds of a step in each repeat}}}}"""
    found = {}
    for sweep, value in repeats[0][1]:
        row = {}
        for n in RANKS:
            row[str(n)] = [repeat[n][sweep, value] for repeat in repeats]
        found.setdefault(sweep, {})[str(value)] = row
    return {"repeats": found}


def report(results: dict) -> str:
    """For each sweep a table with a line per value."""
    lines = [results["about"]]
    for sweep, rows in results["repeats"].items():
        ranks = list(next(iter(rows.values())))
        titles = [UNITS[sweep], *(f"{n} rank(s), ms" for n in ranks)]
        titles += [f"{n} against 1" for n in ranks[1:]]
        cells = []
        for value, row in rows.items():
            times = [f"{statistics.median(row[n]):.2f}" for n in ranks]
            ratios = [against(row["1"], row[n]) for n in ranks[1:]]
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


if __name__ == "__main__":
    main()

"""What changes when one thing changes? Batch, width, buckets, threads, precision, loader workers.

Each question is a sweep: everything stays as it is in the stages (240 images per step, one thread
per rank, fp32, no workers) but for the one thing that is asked about. Steps are taken by stage 3's
own `train_epoch` on batches in memory, on 1, 2 and 4 ranks; the workers are those of stage 1's
DataLoader. All is measured `--repeats` times by turns; printed and drawn are medians.

    python benchmarks/sweep.py
    python benchmarks/sweep.py --results timings
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage1 = importlib.import_module("01_baseline.train")
stage3 = importlib.import_module("03_ddp_spawn.train")

CPU = common.CPU
RANKS = (1, 2, 4)
AS_EVER = {"batch": 240, "width": 1, "cap": None, "threads": 1, "amp": "off"}
SWEEPS = {  # what is changed -> its values
    "batch": [24, 60, 120, 240, 480, 960],
    "width": [1, 2, 4],
    "cap": [1, 2, 4, 8, 25, 100],  # MiB; on wide_net, since the ConvNet's gradients fit into one
    "threads": [1, 2],
    "amp": ["off", "bf16"],
}
WORKERS = [0, 1, 2]
COLORS = {1: "#E69F00", 2: "#0072B2", 4: "#D55E00"}  # Okabe and Ito's, for the colour-blind


class WiderNet(stage3.ConvNet):
    """The ConvNet with so many times its channels."""

    def __init__(self, width: int):
        nn.Module.__init__(self)
        self.block1 = self.block(1, 16 * width)
        self.block2 = self.block(16 * width, 32 * width)
        self.linear = nn.Linear(7 * 7 * 32 * width, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--repeats", type=int, default=3, help="how often all is measured (3)")
    add("--steps", type=int, default=10, help="in each measurement, after two that warm up (10)")
    add("--results", type=Path, help="folder for sweep.json and sweep.png")
    args = common.parse(parser, repeats=1, steps=1)
    repeats = [measure(args.steps) for _ in range(args.repeats)]
    medians = {key: statistics.median(repeat[key] for repeat in repeats) for key in repeats[0]}
    about = f"{common.device_name()}, {args.repeats} repeats, torch {torch.__version__}"
    results = {sweep: {} for sweep in (*SWEEPS, "workers")}
    for (sweep, ranks, value), seconds in medians.items():
        results[sweep].setdefault(str(value), {})[ranks] = 1000 * seconds
    print(about)
    print(tables(results))
    if args.results:
        found = {"about": about, "milliseconds_per_step": results}
        common.write_json(args.results / "sweep.json", found)
        draw(results, about, args.results / "sweep.png")


# ---------------------------------------------------------------- measuring


def measure(steps: int) -> dict[tuple, float]:
    """-> {(sweep, ranks, value): seconds of a step, of the slower rank}"""
    found = {}
    for ranks in RANKS:
        for key, seconds in common.on_ranks(ranks, sweep_on_rank, steps)[0].items():
            found[key[0], ranks, key[1]] = seconds
    for workers in WORKERS:
        found["workers", 1, workers] = with_workers(workers, steps)
    return found


def sweep_on_rank(steps: int) -> dict[tuple, float]:
    """On each of the ranks -> {(sweep, value): seconds of a step}"""
    found = {}
    for sweep, values in SWEEPS.items():
        for value in values:
            seconds = torch.tensor(step_seconds(sweep, AS_EVER | {sweep: value}, steps))
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            found[sweep, value] = seconds.item()
    return found


def step_seconds(sweep: str, settings: dict, steps: int) -> float:
    """Mean seconds of a step under the settings on this rank."""
    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    model = common.wide_net() if sweep == "cap" else WiderNet(settings["width"])
    model = model.to(memory_format=torch.channels_last)
    optimizer = common.scheduled_sgd(model, 0.01, 3 + steps)
    others = (optimizer, torch.amp.GradScaler("cpu", enabled=False), CPU, settings["amp"])
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(
            model, broadcast_buffers=False, bucket_cap_mb=settings["cap"]
        )
    loader = common.batches(1, settings["batch"] // dist.get_world_size())
    stage3.train_epoch(model, loader * 3, *others)  # DDP has its buckets after two
    dist.barrier()
    _, watch = stage3.train_epoch(model, loader * steps, *others)
    return sum(watch.seconds().values()) / steps


def with_workers(workers: int, steps: int) -> float:
    """Seconds of a step of stage 1, its images loaded by so many worker processes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    steps *= 5  # a worker runs ahead by two batches: only over many steps do they not count
    loader = common.make_loader(common.digits(AS_EVER["batch"] * steps), AS_EVER["batch"], workers)
    model = stage1.ConvNet().to(memory_format=torch.channels_last)
    others = (*common.sgd_one_cycle(model, 0.01, 2 * steps), CPU)
    stage1.train_epoch(model, loader, *others)  # starts the workers, which later epochs keep
    started = time.perf_counter()
    stage1.train_epoch(model, loader, *others)
    return (time.perf_counter() - started) / steps


# ---------------------------------------------------------------- what came out


def tables(results: dict) -> str:
    lines = []
    for sweep, rows in results.items():
        ranks = list(next(iter(rows.values())))
        heads = [f"{n} rank{'s' if n > 1 else ''}" for n in ranks]
        heads += [f"{n} against 1" for n in ranks[1:]]
        lines += ["", finding(sweep, rows), f"{sweep:>10}" + "".join(f"{h:>14}" for h in heads)]
        for value, row in rows.items():
            cells = [f"{row[n]:11.2f} ms" for n in ranks]
            cells += [f"{row[1] / row[n]:14.2f}" for n in ranks[1:]]
            lines.append(f"{value:>10}" + "".join(cells))
    return "\n".join(lines)


def finding(sweep: str, rows: dict) -> str:
    """The answer to a sweep's question, out of its figures."""
    if sweep == "batch":
        wins = [int(batch) for batch, row in rows.items() if row[1] > row[2]]
        losses = [int(batch) for batch, row in rows.items() if row[1] <= row[2]]
        if wins and losses:
            return f"2 ranks lose at {max(losses)} images per step, win from {min(wins)}"
        return f"2 ranks {'win' if wins else 'lose'} at every batch"
    if sweep == "width":
        first, *_, last = (row[1] / row[2] for row in rows.values())
        return f"2 ranks: {first:.2f} times as fast as one; with a wider net {last:.2f}"
    if sweep == "cap":
        best = min(rows, key=lambda cap: rows[cap][2])
        gain = list(rows.values())[-1][2] / rows[best][2] - 1
        return f"Buckets of {best} MiB instead of one bucket: {gain:.0%} more speed"
    if sweep == "threads":
        one, two = rows["1"][2], rows["2"][2]
        return f"2 ranks with 2 threads each take {two / one:.1f} times as long"
    if sweep == "amp":
        one, two = (rows["off"][n] / rows["bf16"][n] for n in (1, 2))
        return f"bf16: {one:.2f} times as fast on one rank, {two:.2f} on two"
    one, two = (rows[str(n)][1] / rows["0"][1] - 1 for n in (1, 2))
    return f"Data in memory: one loader worker {one:+.0%} per step, two {two:+.0%}"


def draw(results: dict, about: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")  # draw into a file, also where there is no screen
    import matplotlib.pyplot as plt

    units = {"batch": "images per step", "width": "times the channels", "cap": "bucket_cap_mb, MiB"}
    units |= {"threads": "threads per rank", "amp": "precision", "workers": "loader workers"}
    figure, all_axes = plt.subplots(3, 2, figsize=(10, 9.5), layout="constrained")
    for axes, (sweep, rows) in zip(all_axes.flat, results.items()):
        places, values = range(len(rows)), list(rows)
        if sweep in ("batch", "width"):
            for n in RANKS[1:]:
                speed_ups = [row[1] / row[n] for row in rows.values()]
                axes.plot(places, speed_ups, "o-", color=COLORS[n], label=f"{n} ranks")
            axes.axhline(1, color=COLORS[1], label="one rank")
            axes.set(ylabel="times as fast as one rank", ylim=(0, None))
        else:
            ranks = [n for n in next(iter(rows.values())) if sweep != "cap" or n > 1]
            for number, n in enumerate(ranks):
                x = [place + 0.8 * ((number + 0.5) / len(ranks) - 0.5) for place in places]
                label = f"{n} rank{'s' if n > 1 else ''}"
                heights = [row[n] for row in rows.values()]
                axes.bar(x, heights, 0.75 / len(ranks), color=COLORS[n], label=label)
            axes.set(ylabel="milliseconds per step")
            axes.margins(y=0.35)  # space for the legend
        axes.set_xticks(places, values)
        axes.set_xlabel(units[sweep])
        axes.set_title(finding(sweep, rows), loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    figure.supxlabel(about, x=0.01, ha="left", fontsize=9, color="#555555")
    figure.savefig(path, dpi=120, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()

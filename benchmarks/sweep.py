"""What changes when one thing changes? Batch, width, buckets, threads, precision.

Each question is a sweep: everything stays as it is in the stages (240 images per step, one thread
per rank, fp32) but for the one thing that is asked about. Steps are taken by stage 3's own
`train_epoch` on batches in memory, on 1, 2 and 4 ranks. All is measured `--repeats` times by turns;
milliseconds are medians, and ratios are formed within a repeat (in brackets: smallest and largest).

    python -m benchmarks.sweep
    python -m benchmarks.sweep --repeats 1 --steps 3
"""

import importlib
import statistics

import torch
import torch.distributed as dist

from benchmarks import common

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
UNITS = {"batch": "images per step", "width": "times the channels", "cap": "bucket_cap_mb, MiB"}
UNITS |= {"threads": "threads per rank", "amp": "precision"}


def main() -> None:
    parser = common.flags(__doc__, steps=10)
    parser.add_argument("--repeats", type=int, default=3, help="how often all is measured (3)")
    args = common.parse(parser, repeats=1, steps=1)
    repeats = [measure(args.steps) for _ in range(args.repeats)]
    results = {"about": f"{common.about()}, {args.repeats} repeat(s)"} | summary(repeats)
    print(report(results))
    if args.results:
        common.write_json(args.results / "sweep.json", results)


# ---------------------------------------------------------------- measuring


def measure(steps: int) -> dict[int, dict]:
    """-> {ranks: {(sweep, value): seconds of a step, of the slower rank}}"""
    return {ranks: common.on_ranks(ranks, sweep_on_rank, steps)[0] for ranks in RANKS}


def sweep_on_rank(steps: int) -> dict[tuple, float]:
    """On each of the ranks -> {(sweep, value): seconds of a step}"""
    found = {}
    for sweep, values in SWEEPS.items():
        for value in values:
            if sweep != "batch" and value == AS_EVER[sweep]:  # the stages' setting: once is enough
                found[sweep, value] = found["batch", AS_EVER["batch"]]
                continue
            seconds = torch.tensor(step_seconds(sweep, AS_EVER | {sweep: value}, steps))
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            found[sweep, value] = seconds.item()
    return found


def step_seconds(sweep: str, settings: dict, steps: int) -> float:
    """Mean seconds of a step under the settings on this rank."""
    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    model = common.wide_net() if sweep == "cap" else common.WiderNet(settings["width"])
    model = model.to(memory_format=torch.channels_last)
    optimizer = common.scheduled_sgd(model, 0.01, 3 + steps)
    others = (optimizer, torch.amp.GradScaler("cpu", enabled=False), CPU, settings["amp"])
    if dist.get_world_size() > 1:
        model = common.ddp(model, bucket_cap_mb=settings["cap"])
    loader = common.batches(1, settings["batch"] // dist.get_world_size())
    stage3.train_epoch(model, loader * 3, *others)  # DDP has its buckets after two
    dist.barrier()
    _, watch = stage3.train_epoch(model, loader * steps, *others)
    return sum(watch.seconds().values()) / steps


# ---------------------------------------------------------------- what came out


def summary(repeats: list[dict]) -> dict:
    """-> {"milliseconds_per_step": [sweep][value][ranks], "ratios": the same to one rank, lists}"""
    milliseconds = {sweep: {str(value): {} for value in SWEEPS[sweep]} for sweep in SWEEPS}
    ratios = {sweep: {str(value): {} for value in SWEEPS[sweep]} for sweep in SWEEPS}
    for n in repeats[0]:
        for sweep, value in repeats[0][n]:
            own = [repeat[n][sweep, value] for repeat in repeats]
            one = [repeat[1][sweep, value] for repeat in repeats]
            milliseconds[sweep][str(value)][str(n)] = 1000 * statistics.median(own)
            ratios[sweep][str(value)][str(n)] = [a / b for a, b in zip(one, own)]
    return {"milliseconds_per_step": milliseconds, "ratios": ratios}


def report(results: dict) -> str:
    """For each sweep its finding and a table with a line per value."""
    lines = [results["about"]]
    for sweep, rows in results["milliseconds_per_step"].items():
        ranks = list(next(iter(rows.values())))
        titles = [UNITS[sweep], *(f"{n} rank(s), ms" for n in ranks)]
        titles += [f"{n} against 1" for n in ranks[1:]]
        cells = []
        for value, row in rows.items():
            ratios = [spread(results["ratios"][sweep][value][n]) for n in ranks[1:]]
            cells.append([value, *(f"{row[n]:.2f}" for n in ranks), *ratios])
        lines += ["", finding(sweep, rows), common.table(titles, cells)]
    return "\n".join(lines)


def spread(ratios: list[float]) -> str:
    """The median and, of several, the smallest and the largest."""
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def finding(sweep: str, rows: dict[str, dict[str, float]]) -> str:
    """The answer to a sweep's question, out of its figures."""
    if sweep == "batch":
        wins = [int(batch) for batch, row in rows.items() if row["1"] > row["2"]]
        losses = [int(batch) for batch, row in rows.items() if row["1"] <= row["2"]]
        if wins and losses:
            return f"2 ranks lose at {max(losses)} images per step, win from {min(wins)}"
        return f"2 ranks {'win' if wins else 'lose'} at every batch"
    if sweep == "width":
        first, *_, last = (row["1"] / row["2"] for row in rows.values())
        return f"2 ranks: {first:.2f} times as fast as one; with a wider net {last:.2f}"
    if sweep == "cap":
        own = [row["2"] for row in rows.values()]
        return f"Between the best and the worst bucket size: {max(own) / min(own) - 1:.0%}"
    if sweep == "threads":
        one, two = rows["1"]["2"], rows["2"]["2"]
        return f"2 ranks with 2 threads each take {two / one:.1f} times as long"
    one, two = (rows["off"][n] / rows["bf16"][n] for n in ("1", "2"))
    return f"bf16: {one:.2f} times as fast on one rank, {two:.2f} on two"


if __name__ == "__main__":
    main()

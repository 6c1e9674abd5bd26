"""What do two ranks do in a step, when is each bucket all-reduced, and which rank waits?

Stage 3's own `train_epoch` runs over batches in memory. The laps of its stopwatch show what a
rank's main thread does. A DDP communication hook notes when a bucket leaves and when its all-reduce
is done. All read time.perf_counter, since Python 3.10 one clock for all processes of a machine; no
all-reduce may end on one rank before it has begun on every rank, and that is checked.

In the same rounds run, by turns, the same steps without communication, with all gradients in one
bucket (no overlap), and with DDP as it is, nothing recorded: what overlap brings, and what
recording costs. Drawn is the round whose time is nearest the median, not the nicest one.
It runs on CPUs, with gloo: on a GPU the main thread only queues the work, and laps would show that.

    python benchmarks/timeline.py --results results
    python benchmarks/timeline.py --width 4 --bucket-cap-mb 0.2 --batch-size 24 --steps 3 \\
        --results results --name buckets
    python benchmarks/timeline.py --slow 1 --results results --name slow_rank
"""

import argparse
import importlib
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

if __name__ == "__mp_main__":  # a spawned rank: Ctrl-C just ends it, and its parent reports that
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common

stage3 = importlib.import_module("03_ddp_spawn.train")

FILES = ("results", "name")  # the settings that only say where to write
PHASES = ("data", "forward", "backward", "exposed", "optimizer")
ALONE, ONE, PLAIN, DRAWN = "no communication", "DDP, one bucket", "DDP", "DDP, recorded"
SLEEP = 10  # milliseconds per batch, on the rank that is to be slow
WARM_UP = 5  # steps; DDP fills its buckets anew in the second
COLUMNS = {"data": "7.2f", "forward": "9.2f", "backward": "10.2f", "exposed": "9.2f"}
COLUMNS |= {"(others)": "10.2f", "optimizer": "11.2f", "total": "8.2f"}
COLUMNS |= {"all-reduce": "12.2f", "hidden": "8.0%", "last": "7.0%"}


def main() -> None:
    args = parse()
    args.device_name, args.cores = common.device_name(), common.cores()
    args.torch = torch.__version__
    try:
        ranks = common.on_ranks(args.world_size, measure, args)
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        sys.exit(f"timeline.py: {str(error).strip()}")
    finally:  # an interrupt may have reached this process alone
        for process in mp.active_children():
            process.terminate()
    results = assemble(args, ranks)
    print(report(results))
    if args.results:
        common.write_json(args.results / f"{args.name}.json", results, indent=None)
        picture = args.results / f"{args.name}.png"
        common.write_whole(picture, lambda file: draw(results, file))


def parse() -> argparse.Namespace:
    """Read the flags and refuse what cannot work, before any rank is started."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--world-size", type=int, default=2, help="ranks (2)")
    add("--batch-size", type=int, default=240, help="images per step, all ranks (240)")
    add("--bucket-cap-mb", type=float, help="MiB that fill a bucket (DDP's)")
    add("--width", type=int, default=1, help="times the ConvNet's channels (1)")
    add("--steps", type=int, default=4, help="steps of a round, all drawn (4)")
    add("--rounds", type=int, default=20, help="each way takes its steps in each")
    add("--slow", type=int, metavar="RANK", help=f"this one sleeps {SLEEP} ms per batch")
    add("--results", type=Path, metavar="DIR", help="write the figures and the picture there")
    add("--name", default="timeline", help="of those two files, without .json and .png (timeline)")
    least = {"world_size": 2, "batch_size": 1, "bucket_cap_mb": 0.001, "width": 1, "slow": 0}
    args = common.parse(parser, **least, steps=1, rounds=2)
    if args.batch_size % args.world_size:
        parser.error(f"--batch-size {args.batch_size} is not divisible by {args.world_size} ranks")
    if args.slow is not None and args.slow >= args.world_size:
        parser.error(f"--slow {args.slow}: the ranks are 0 to {args.world_size - 1}")
    if not args.name or Path(args.name).name != args.name:
        parser.error(f"--name {args.name}: a file name, without a folder")
    return args


# ---------------------------------------------------------------- on a rank


def measure(args: argparse.Namespace) -> dict:
    """On a rank -> {"rounds": {way: [[step, ...], ...]}, "bucket_bytes": [...], "equal": bool}

    A step is {"laps": [start, end of each phase], "all_reduces": [[left, done] of each bucket]}, in
    milliseconds since all ranks were ready. The first step of a round follows a barrier, not
    another step, and is left out.
    """
    equal = equals_ddp(args)
    warm_up, loader = Batches(args, WARM_UP + args.steps), Batches(args, 1 + args.steps)
    runs = {way: prepare(way, args) for way in (ALONE, ONE, PLAIN, DRAWN)}
    for run in runs.values():
        take_steps(warm_up, *run)
    sizes = [note["bytes"] for note in runs[DRAWN][0][-1]]
    if len(sizes) == 1:
        del runs[ONE]  # DDP as it is has no more
    if dist.get_rank() == 0:
        print(about(vars(args) | {"bucket_bytes": sizes}), flush=True)
    zero = torch.tensor(time.perf_counter(), dtype=torch.float64)
    dist.broadcast(zero, src=0)
    rounds = {way: [] for way in runs}
    for _ in range(args.rounds):
        for way, run in runs.items():
            rounds[way].append(take_steps(loader, *run, zero.item())[1:])
    return {"rounds": rounds, "bucket_bytes": sizes, "equal": equal}


def prepare(way: str, args: argparse.Namespace) -> tuple:
    """-> the list that the hook fills, and what train_epoch needs, as stage 3 makes it"""
    notes, model = [], make_net(args.width)
    steps = WARM_UP + args.steps + args.rounds * (1 + args.steps)
    optimizer = common.scheduled_sgd(model, 0.01, steps)
    if way != ALONE:
        model = ddp(model, 1024 if way == ONE else args.bucket_cap_mb)
    if way == DRAWN:
        model.register_comm_hook(notes, average_and_note)
    return notes, model, optimizer, torch.amp.GradScaler("cpu", enabled=False)


def take_steps(loader, notes, model, optimizer, scaler, zero=0.0) -> list[dict]:
    """One epoch of stage 3 -> its steps, in milliseconds since zero"""

    def since_zero(seconds):
        return round(1000 * (seconds - zero), 4)

    notes.clear()
    dist.barrier()
    _, watch = stage3.train_epoch(model, loader, optimizer, scaler, common.CPU, "off")
    (_, *phases), laps = zip(*watch.laps)
    if phases != list(PHASES) * len(loader):
        raise RuntimeError(f"stage 3 has taken other laps than {PHASES} in every step")
    laps = list(map(since_zero, laps))
    steps = [laps[i : i + len(PHASES) + 1] for i in range(0, len(phases), len(PHASES))]
    travels = [[[since_zero(n["left"]), since_zero(n["done"])] for n in step] for step in notes]
    return [
        {"laps": step, "all_reduces": travel}
        for step, travel in zip(steps, travels or [[]] * len(steps), strict=True)
    ]


def average_and_note(notes: list, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: average over the ranks as DDP does, and note when."""
    if bucket.index() == 0:
        notes.append([])  # a new step
    gradients = bucket.buffer()
    gradients *= 1 / dist.get_world_size()
    note = {"bytes": gradients.nbytes, "left": time.perf_counter()}
    notes[-1].append(note)

    def arrive(future):  # called by gloo's thread, before backward returns
        note["done"] = time.perf_counter()
        return future.value()[0]

    return dist.all_reduce(gradients, async_op=True).get_future().then(arrive)


def equals_ddp(args: argparse.Namespace) -> bool:
    """Do three steps with the hook give the gradients of plain DDP, bit for bit?"""
    plain, hooked = (ddp(make_net(args.width), args.bucket_cap_mb) for _ in range(2))
    hooked.register_comm_hook([], average_and_note)
    torch.manual_seed(dist.get_rank())  # each rank has images of its own
    equal = True
    for _ in range(3):  # the first one fills other buckets than the next ones
        x, y = torch.rand(4, 1, 28, 28), torch.randint(10, (4,))
        for model in (plain, hooked):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
        pairs = zip(plain.parameters(), hooked.parameters())
        equal &= all(torch.equal(a.grad, b.grad) for a, b in pairs)
    return equal


def ddp(model: torch.nn.Module, cap: float | None) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=cap, broadcast_buffers=False)


def make_net(width: int) -> stage3.ConvNet:
    """The ConvNet, the same every time, with `width` times its channels."""
    torch.manual_seed(0)
    net = stage3.ConvNet()
    if width > 1:
        net.block1 = net.block(1, 16 * width)
        net.block2 = net.block(16 * width, 32 * width)
        net.linear = torch.nn.Linear(7 * 7 * 32 * width, 10)
    return net.to(memory_format=torch.channels_last)


class Batches:
    """A rank's shard of `count` batches of random images; the slow rank sleeps before each."""

    def __init__(self, args: argparse.Namespace, count: int):
        rank = dist.get_rank()
        self.batches = common.batches(count, args.batch_size // args.world_size, seed=rank)
        self.sleep = SLEEP / 1000 if rank == args.slow else 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator:
        for batch in self.batches:
            if self.sleep:
                time.sleep(self.sleep)
            yield batch


# ---------------------------------------------------------------- what was found


def assemble(args: argparse.Namespace, ranks: list[dict]) -> dict:
    """Settings, hardware and what all ranks measured -> the results, as they go into the file.

    results["rounds"][way][rank][round] is a list of steps; each all-reduce is now [left, joined,
    done]: joined is when the last rank's bucket left. Ends the program if the figures cannot be.
    """
    if not all(rank["equal"] for rank in ranks):
        sys.exit("timeline.py: with the recording hook the gradients are not those of plain DDP")
    rounds = {way: [rank["rounds"][way] for rank in ranks] for way in ranks[0]["rounds"]}
    for of_ranks in rounds.values():
        for steps in zip(*(chain.from_iterable(of_rank) for of_rank in of_ranks)):
            for bucket in zip(*(step["all_reduces"] for step in steps)):
                joined = max(left for left, _ in bucket)
                if joined > min(done for _, done in bucket):
                    sys.exit("timeline.py: an all-reduce has ended before it began: clocks differ")
                for travel in bucket:
                    travel.insert(1, joined)
    results = {name: value for name, value in vars(args).items() if name not in FILES}
    results |= {"bucket_bytes": ranks[0]["bucket_bytes"], "rounds": rounds}
    totals = per_round(results, DRAWN, "total")
    distances = [abs(total - statistics.median(totals)) for total in totals]
    return results | {"shown_round": distances.index(min(distances))}


def report(results: dict) -> str:
    """Each rank's phases, the ways side by side, the buckets, and what they say: text to print."""
    lines = ["With the recording hook the gradients are plain DDP's, bit for bit."]
    head = "".join(f"{name:>{form.partition('.')[0]}}" for name, form in COLUMNS.items())
    lines += ["", f"{'ms per step':11}{head}"]
    for rank in range(results["world_size"]):
        found = figures(results, rank)
        cells = "".join(f"{found[name]:{form}}" for name, form in COLUMNS.items())
        lines.append(f"rank {rank:<6}{cells}")
    lines += [
        "(medians. (others): the part of exposed until the last rank's gradients were there;",
        "all-reduce: at least one is on its way; hidden: the part of it before backward ends;",
        "last: steps in which the others waited for this rank)",
        "",
        f"{'the ways, by turns':22}backward  exposed   total, slowest rank (quartiles)",
    ]
    for way in results["rounds"]:
        backward, exposed = (
            statistics.median(per_round(results, way, phase)) for phase in ("backward", "exposed")
        )
        low, total, high = statistics.quantiles(per_round(results, way, "total"), n=4)
        lines.append(f"{way:22}{backward:8.2f}{exposed:9.2f}{total:8.2f} ({low:.2f}-{high:.2f})")
    lines += ["", f"{'the buckets':22}  leaves    takes (quartiles)", *buckets(results)]
    lines += ["(leaves: against the end of backward; takes: from when all ranks are there)", ""]
    return "\n".join([*lines, *what_is_seen(results)])


def buckets(results: dict) -> list[str]:
    """The table's line for each bucket."""
    lines = []
    steps = list(chain.from_iterable(chain.from_iterable(results["rounds"][DRAWN])))
    for number, name in enumerate(bucket_names(results)):
        left, joined, done = zip(*(step["all_reduces"][number] for step in steps))
        backward_ends = (step["laps"][3] for step in steps)
        leaves = statistics.median(map(float.__sub__, left, backward_ends))
        low, takes, high = statistics.quantiles(map(float.__sub__, done, joined), n=4)
        lines.append(f"{name:22}{leaves:+8.2f}{takes:9.2f} ({low:.2f}-{high:.2f})")
    return lines


def bucket_names(results: dict) -> list[str]:
    sizes = enumerate(results["bucket_bytes"])
    return [f"bucket {number}, {size / 1000:.0f} KB" for number, size in sizes]


def about(results: dict) -> str:
    """What was run, and on what."""
    wide = f" with {results['width']} times the channels" if results["width"] > 1 else ""
    sizes = ", ".join(f"{size / 1000:.0f}" for size in results["bucket_bytes"])
    slow = f", rank {results['slow']} sleeps {SLEEP} ms per batch"
    return (
        f"{results['world_size']} ranks, {results['batch_size']} images per step, ConvNet{wide}, "
        f"buckets of {sizes} KB{'' if results['slow'] is None else slow}, "
        f"{results['device_name']}, {results['cores']} cores, torch {results['torch']}"
    )


def figures(results: dict, rank: int) -> dict[str, float]:
    """Of the steps that were recorded, on one rank: the value of each column of the table."""
    steps = list(chain.from_iterable(results["rounds"][DRAWN][rank]))
    found = {phase: statistics.median(length(step, phase) for step in steps) for phase in PHASES}
    found["(others)"] = statistics.median(map(waits_for_others, steps))
    found["total"] = statistics.median(length(step, "total") for step in steps)
    travel, hidden = zip(*map(travel_and_hidden, steps))
    found |= {"all-reduce": statistics.median(travel), "hidden": sum(hidden) / sum(travel)}
    left, joined, _ = zip(*(step["all_reduces"][-1] for step in steps))
    return found | {"last": statistics.mean(map(float.__eq__, left, joined))}


def length(step: dict, phase: str) -> float:
    """Milliseconds of a phase, or of the whole step ("total")."""
    if phase == "total":
        return step["laps"][-1] - step["laps"][0]
    return step["laps"][PHASES.index(phase) + 1] - step["laps"][PHASES.index(phase)]


def waits_for_others(step: dict) -> float:
    """Milliseconds of "exposed" in which another rank had still to bring its last bucket."""
    start, end = step["laps"][3:5]
    _, joined, _ = step["all_reduces"][-1]
    return max(0.0, min(joined, end) - start)


def travel_and_hidden(step: dict) -> tuple[float, float]:
    """-> milliseconds in which any all-reduce was under way, and those before backward's end"""
    travel = hidden = 0.0
    backward_ends, until = step["laps"][3], step["laps"][0]
    for left, _, done in step["all_reduces"]:  # they leave in order, but may arrive in another
        start, until = max(left, until), max(done, until)
        travel += until - start
        hidden += max(0.0, min(until, backward_ends) - start)
    return travel, hidden


def per_round(results: dict, way: str, phase: str) -> list[float]:
    """Milliseconds per step in each round: mean over the ranks; "total" is the slowest rank's."""
    combine = max if phase == "total" else statistics.mean
    return [
        combine(statistics.mean(length(step, phase) for step in steps) for steps in of_ranks)
        for of_ranks in zip(*results["rounds"][way])
    ]


def what_is_seen(results: dict) -> list[str]:
    """What recording costs and what overlap brings, from differences within the same round."""

    def change(phase, own, other):
        pairs = zip(per_round(results, own, phase), per_round(results, other, phase))
        low, middle, high = statistics.quantiles([a - b for a, b in pairs], n=4)
        return f"{phase} {middle:+.2f} ms ({low:+.2f} to {high:+.2f})"

    lines = [f"Recording adds: {change('total', DRAWN, PLAIN)}."]
    if ONE not in results["rounds"]:
        return [*lines, "There is one bucket, full with the last gradient: nothing can overlap."]
    changes = [change(phase, PLAIN, ONE) for phase in ("exposed", "backward", "total")]
    lines += [f"Overlap adds, against one bucket: {changes[0]},", f"{changes[1]}, {changes[2]}."]
    if results["world_size"] >= results["cores"]:
        lines += ["The main threads fill all cores: the threads that move bytes compete with them."]
    return lines


# ---------------------------------------------------------------- the picture


def draw(results: dict, path: Path) -> None:
    """A PNG: lanes over milliseconds, per rank one for its main thread and one for each bucket."""
    import matplotlib

    matplotlib.use("Agg")  # draw into a file, also where there is no screen
    import matplotlib.pyplot as plt

    shown = [rounds[results["shown_round"]] for rounds in results["rounds"][DRAWN]]
    zero = min(steps[0]["laps"][0] for steps in shown)
    sizes = bucket_names(results)
    height = 1.5 + 0.6 * len(sizes)  # of a rank's lanes, where a main thread's bar has 0.9
    inches = 2.0 + 0.33 * height * len(shown)
    figure, axes = plt.subplots(figsize=(7.3, inches))  # 876 pixels wide
    figure.subplots_adjust(left=0.18, right=0.985, top=1 - 1.02 / inches, bottom=0.93 / inches)
    places = []
    for rank, steps in enumerate(shown):
        lanes = [rank * height, *(rank * height + 0.85 + 0.6 * i for i in range(len(sizes)))]
        draw_rank(axes, lanes, steps, zero)
        places += lanes
    labels = [label for rank in range(len(shown)) for label in (f"rank {rank}", *sizes)]
    axes.set_yticks(places, labels, fontsize=9)
    axes.set(ylim=(places[-1] + 0.5, -0.7), xlabel="milliseconds")
    end = max(steps[-1]["laps"][-1] for steps in shown) - zero
    axes.set_xlim(-0.005 * end, 1.005 * end)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    legends(figure, inches)
    headline, footnote = textwrap.fill(title(results), 70), textwrap.fill(about(results), 105)
    place = {"x": 0.01, "ha": "left"}
    figure.suptitle(headline, y=1 - 0.05 / inches, fontsize=11.5, fontweight="bold", **place)
    figure.supxlabel(footnote, y=0.05 / inches, fontsize=9, color="#555555", **place)
    figure.savefig(path, dpi=120, facecolor="white", format="png")
    plt.close(figure)


def draw_rank(axes, lanes: list[float], steps: list[dict], zero: float) -> None:
    """One rank's bars: lanes[0] is the place of its main thread, the others are its buckets'."""
    looks = bar_looks()
    for step in steps:
        for phase, start, end in zip(PHASES, step["laps"], step["laps"][1:]):
            axes.barh(lanes[0], end - start, 0.9, start - zero, **looks[phase])
        for y, (left, joined, done) in zip(lanes[1:], step["all_reduces"]):
            axes.barh(y, joined - left, 0.45, left - zero, **looks["missing"])
            axes.barh(y, done - joined, 0.45, joined - zero, **looks["travels"])
        start = step["laps"][0] - zero
        axes.vlines(start, lanes[0] - 0.6, lanes[-1] + 0.3, color="black", linewidth=0.8)


def bar_looks() -> dict[str, dict]:
    """-> for every kind of bar how matplotlib is to draw it; who waits is hatched"""
    import compare

    colors = compare.PHASES | {"missing": "#CC79A7", "travels": "#009E73"}  # all Okabe and Ito's
    looks = {name: {"facecolor": color, "linewidth": 0} for name, color in colors.items()}
    for name in ("exposed", "missing"):
        looks[name] |= {"hatch": "////", "edgecolor": "white"}
    return looks


def legends(figure, inches: float) -> None:
    """Under the title: a line for what main threads do, and one for the all-reduces."""
    from matplotlib.patches import Patch

    names = {"exposed": "exposed: waiting", "optimizer": "optimizer step"}
    names |= {"missing": "all-reduce: a rank is still missing"}
    names |= {"travels": "all-reduce: all ranks are there"}
    keys = [Patch(label=names.get(kind, kind), **look) for kind, look in bar_looks().items()]
    style = {"ncols": len(keys), "columnspacing": 1.2, "handlelength": 1.5, "fontsize": 9}
    style |= {"frameon": False, "loc": "upper left", "borderpad": 0, "borderaxespad": 0}
    lines = (keys[: len(PHASES)], 0.56), (keys[len(PHASES) :], 0.78)  # inches from the top
    for line, below in lines:
        figure.legend(handles=line, bbox_to_anchor=(0.012, 1 - below / inches), **style)


def title(results: dict) -> str:
    """The finding, in the medians of the table: who waits, what overlaps, or that nothing does."""
    ranks = [figures(results, rank) for rank in range(results["world_size"])]
    total = statistics.mean(found["total"] for found in ranks)
    if (slow := results["slow"]) is not None:
        waits, rank = max((found["(others)"], r) for r, found in enumerate(ranks) if r != slow)
        return (
            f"Rank {slow} sleeps {SLEEP} ms per batch: "
            f"rank {rank} waits {waits:.1f} of {total:.1f} ms of a step for it"
        )
    hidden = statistics.mean(found["hidden"] for found in ranks)
    exposed = statistics.mean(found["exposed"] for found in ranks)
    if ONE not in results["rounds"]:
        return (
            f"One bucket: {hidden:.0%} of its all-reduce is hidden behind backward, "
            f"ranks wait {exposed:.1f} of {total:.1f} ms of a step"
        )
    one = statistics.median(per_round(results, ONE, "total"))
    own = statistics.median(per_round(results, PLAIN, "total"))
    return (
        f"{len(results['bucket_bytes'])} buckets: {hidden:.0%} of the communication is hidden "
        f"behind backward. A step takes {own:.1f} ms (with one bucket: {one:.1f} ms)"
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ntimeline.py: interrupted", file=sys.stderr)
        sys.exit(130)

"""3. DDP: averages, buckets, overlap, cost."""

from importlib import import_module

lesson = import_module("notebooks.lesson")


def alone_and_together(ranks: list[dict]) -> None:
    """Lines: where w goes on each rank, alone and with DDP."""
    title = "Alone the ranks move apart; with DDP they take every step together"
    with lesson.picture(title, height=3.2, ncols=2, sharey=True) as both:
        for axes, way in zip(both, ("alone", "together")):
            for rank, values in enumerate(ranks):
                w = [number for number, _ in values[way]]
                axes.plot(w, ["-", "--"][rank], color=lesson.RANKS[rank], label=f"rank {rank}")
            axes.set(
                title={"alone": "alone", "together": "with DDP"}[way], xlabel="step", ylabel="w"
            )
            axes.legend()


def leaving(events: list[tuple[str, list[int]]]) -> list[tuple[int, list[int]]]:
    """-> for each bucket: how many gradients were ready when it left, and its parameters."""
    kinds = [kind for kind, _ in events]
    buckets = [(k, parameters) for k, (kind, parameters) in enumerate(events) if kind == "bucket"]
    return [(kinds[:k].count("gradient"), parameters) for k, parameters in buckets]


def buckets(axes, title: str, events: list[tuple[str, list[int]]], now: int) -> None:
    """At moment `now`: the gradients that are ready, and the buckets that have left."""
    last = 11
    arrived = [parameters[0] for kind, parameters in events if kind == "gradient"]
    for number, (ready, bucket) in enumerate(leaving(events)):
        color, rows = lesson.RANKS[number], [arrived.index(index) for index in bucket]
        there = [row for row in rows if row < now]
        axes.plot([row + 1 for row in there], there, "s", color=color, markersize=5)
        if ready <= now:
            low, height = min(rows) - 0.45, len(rows) - 0.1
            width = 13.9 - ready if now == last else now - ready + 0.4
            axes.broken_barh([(ready + 0.6, width)], (low, height), color=color)
            if now == last:
                look = {"color": "wkw"[number], "ha": "center", "va": "center"}
                axes.text(11.9, low + height / 2, number, weight="bold", **look)
    axes.axvline(10.5, color=lesson.GRAY, linestyle=":")
    axes.set(title=title, xlim=(0.3, 13.9), ylim=(9.7, -0.7), xticks=[1, 5, 10])
    axes.set(ylabel="gradient of parameter")
    axes.set_yticks(range(10), arrived)


def bucket_film(third_pass: list) -> None:
    """Four panels: moments of the third backward."""
    title = "3rd backward, step by step: each bucket is sent when it is full"
    moments = {"after 2 gradients": 2, "after 5": 5, "after 9": 9, "the end": 11}
    with lesson.picture(title, height=3.1, ncols=4, sharey=True) as row:
        for axes, (moment, now) in zip(row, moments.items()):
            buckets(axes, moment, third_pass, now)
            axes.set(xlabel="gradients ready")
            axes.label_outer()
        row[3].set_xticks([1, 5, 10.5], ["1", "5", "backward\nis over"])
        row[3].set_xlabel("")  # The second line of its last tick is there.


def bucket_shares(cases: list, seen: list, sizes_of) -> list[list[int]]:
    """A table: what is in each bucket, of the ConvNet with other caps, and of wider nets

    -> for each case, the bytes in each of its buckets.
    """
    filled = []
    for (net, width, _), (_, _, third) in zip(cases, seen):
        sizes = sizes_of(net, width)
        shares = []
        for kind, indices in third:
            if kind == "bucket":
                shares.append(sum(sizes[index] for index in indices))
        filled.append(shares)

    names = [f"the ConvNet, cap {cap} MiB" for _, _, cap in cases[1:5]]
    names = ["the ConvNet, default caps", *names, "ConvNet, 4 times as wide, default caps"]
    names.append("`wide_net`, default caps")
    rows = []
    for name, shares in zip(names, filled):
        in_order = " + ".join(f"{share:,}" for share in shares)
        rows.append([name, f"{sum(shares):,}", in_order])
    lesson.table(["net", "bytes of gradients", "its buckets, in their order"], rows, "lrl")
    return filled


def overlap(of_rank_0: dict[str, list[float]]) -> None:
    """Bars: backward with one bucket and with several, on rank 0."""
    bars = {}
    for number, (backward, exposed) in of_rank_0.items():
        name = "1 bucket" if number == "1" else f"{number} buckets"
        bars[name] = {"backward": backward, "exposed": exposed}
    saved = 1 - sum(of_rank_0["8"]) / sum(of_rank_0["1"])
    title = f"If layers leave the CPU free, eight buckets take {saved:.0%} less time than one"
    with lesson.picture(title, height=2.9) as axes:
        lesson.stack(axes, bars, {part: lesson.COLORS[part] for part in ("backward", "exposed")})
        axes.set(xlabel="milliseconds of loss.backward() on rank 0, 16.8 MB of gradients")


# ---------------------------------------------------------------- from the records


def cost() -> None:
    """The phases of a step with DDP, and a table of throughput."""
    runs = {
        "one process": lesson.measured("01_baseline"),
        "two ranks, DDP": lesson.measured("03_ddp_spawn"),
    }
    batch = runs["one process"][0]["batch_size"]
    steps = {way: lesson.phases(run) for way, run in runs.items()}
    waits = lesson.medians(runs["two ranks, DDP"])
    share = waits["exposed"] / waits["step"]
    title = f"With DDP {share:.0%} of a step is exposed communication (two CPU cores)"
    with lesson.picture(title, height=2.2) as axes:
        lesson.stack(axes, steps, lesson.COLORS)
        axes.set(xlabel=f"milliseconds of one step of {batch} images")

    one = runs["one process"]
    pairs = {way: (run, one) for way, run in runs.items()}
    pairs["four ranks, DDP"] = lesson.measured("03_ddp_spawn", world_size=4), one
    smaller = (lesson.measured(name, batch_size=120) for name in ("03_ddp_spawn", "01_baseline"))
    pairs["two ranks, DDP, 120 images per step"] = tuple(smaller)
    rows = []
    for way, (run, base) in pairs.items():
        middle = lesson.medians(run)
        cells = f"{lesson.ratio(run, base):.2f}", f"{middle['accuracy']:.2%}"
        rows.append([way, f"{middle['images/s']:,.0f}", *cells])
    lesson.table(["on two CPU cores", "images per second", "speedup", "accuracy"], rows)

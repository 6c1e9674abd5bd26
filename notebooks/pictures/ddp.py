"""3. DDP: averages, buckets, overlap, cost."""

from importlib import import_module

from . import moving

lesson = import_module("notebooks.lesson")


def first_step(ranks: list[dict]) -> None:
    """The first step with DDP: two gradients, their average, and equal weights."""
    gradients = [rank["alone"][0][1] for rank in ranks]
    weight, average = ranks[0]["together"][0]
    after = ranks[0]["together"][1][0]
    lesson.show_moving(moving.idea(weight, gradients, average, round(after, 5)))


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


def bucket_film(events: list[tuple[str, list[int]]]) -> None:
    """One backward pass: the gradients become ready, the buckets fill, and are all-reduced."""
    order = [parameters[0] for kind, parameters in events if kind == "gradient"]
    filled = [parameters for kind, parameters in events if kind == "bucket"]
    in_order = []
    for bucket in filled:
        in_order.append(sorted(bucket, key=order.index))
    lesson.show_moving(moving.buckets(order, in_order))


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
    """Bars: the phases of a step, of one process and of two ranks with DDP."""
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

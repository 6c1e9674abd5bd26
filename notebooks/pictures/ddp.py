"""3. DDP: an average, buckets."""

from importlib import import_module

from . import moving

lesson = import_module("notebooks.lesson")


def first_step(ranks: list[dict]) -> None:
    """A step with DDP: two gradients, their average, and equal weights."""
    gradients = [values["alone"] for values in ranks]
    same = ranks[0]  # Start, average and end are the same on all ranks.
    end = round(same["end"], 5)
    lesson.show_moving(moving.idea(same["start"], gradients, same["average"], end))


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
    network = [*import_module("03_ddp_spawn.train").make_model().parameters()]
    sizes = []
    for bucket in in_order:
        sizes.append(sum(network[parameter].nbytes for parameter in bucket))
    lesson.show_moving(moving.buckets(order, in_order, sizes))

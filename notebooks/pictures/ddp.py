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


def leaving(events: list[tuple[str, list[int], float]]) -> list[tuple[int, list[int]]]:
    """-> for each bucket: how many gradients were ready when it was sent, and its parameters."""
    kinds = [kind for kind, _, _ in events]
    sent = [(k, parameters) for k, (kind, parameters, _) in enumerate(events) if kind == "sent"]
    return [(kinds[:k].count("gradient"), parameters) for k, parameters in sent]


def bucket_film(passes: list[list[tuple[str, list[int], float]]]) -> None:
    """How long backward computes, and each bucket from sent to averaged, in one of the passes.

    It is the pass whose buckets took the least time: they waited least for the other rank.
    """
    events = min(passes, key=time_of_buckets)
    network = [*import_module("03_ddp_spawn.train").make_model().parameters()]
    complete = {bucket[0]: time for kind, bucket, time in events if kind == "gradient"}
    averaged = {tuple(bucket): time for kind, bucket, time in events if kind == "averaged"}
    buckets = []
    for kind, bucket, sent in events:
        if kind == "sent":
            size = sum(network[parameter].nbytes for parameter in bucket)
            times = {
                "complete": [round(complete[parameter], 3) for parameter in bucket],
                "sent": round(sent, 3),
                "averaged": round(averaged[tuple(bucket)], 3),
            }
            buckets.append({"size": size} | times)
    lesson.show_moving(moving.buckets(buckets))


def time_of_buckets(events: list[tuple[str, list[int], float]]) -> float:
    """The milliseconds from sent to averaged, of all buckets together."""
    averaged = sum(time for kind, _, time in events if kind == "averaged")
    return averaged - sum(time for kind, _, time in events if kind == "sent")

"""1. A training step, loading, random numbers."""

import json
from importlib import import_module

from . import moving

lesson = import_module("notebooks.lesson")


def step_of_stage_1() -> None:
    """Print the phases of one step, from the record."""
    row = lesson.measured("01_baseline")
    step = lesson.phases(row)
    whole = lesson.medians(row)["step"]
    del step["exposed"]  # waiting for other ranks: one process has none
    shares = ", ".join(f"{phase} {length / whole:.1%}" for phase, length in step.items())
    print(f"A step of {row[0]['batch_size']} images takes {whole:.1f} ms: {shares}")


def shard_gradients(shards, whole) -> None:
    """The first four numbers of the shards' gradients, their average, and those of the batch."""
    numbers = slice(4)
    of_shards = [rounded(shard[numbers]) for shard in shards]
    lesson.show_moving(moving.average(of_shards, rounded(whole[numbers]), len(whole)))


def rounded(values) -> list[float]:
    """Digits beyond these are not seen in a picture."""
    return [round(value, 5) for value in values.tolist()]


# ---------------------------------------------------------------- loading


def ways_of_loading() -> dict:
    """Bars: the phases of a step, by way of loading -> the record of the benchmark."""
    path = lesson.ROOT / "benchmarks/results/loaders.json"
    record = json.loads(path.read_text())
    milliseconds = record["milliseconds_per_step"]
    loading = {way: phases["data"] for way, phases in milliseconds.items()}
    slow = max(loading, key=loading.get)
    fast = min(loading, key=loading.get)
    title = f"Loading takes {loading[slow]:.1f} ms ({slow}) or {loading[fast]:.1f} ms ({fast})"
    with lesson.picture(title, height=0.9 + 0.45 * len(milliseconds)) as axes:
        lesson.stack(axes, milliseconds, lesson.COLORS)
        axes.set(xlabel=f"milliseconds of one step of {record['batch']} images, one core")
    return record


def on_faster_devices(milliseconds: dict[str, dict[str, float]]) -> None:
    """A table: the loader's part of a step on devices that compute faster."""
    ways = [way for way in milliseconds if "worker" not in way]
    rows = []
    for times in (1, 5, 20, 100):
        row = [f"{times} times as fast as this core" if times > 1 else "this core"]
        for way in ways:
            loading = milliseconds[way]["data"]
            rest = sum(milliseconds[way].values()) - loading
            row.append(f"{loading / (loading + rest / times):.0%}")
        rows.append(row)
    lesson.table(["device of the model", *ways], rows)


# ---------------------------------------------------------------- random numbers


def rotated_digits(good: list, bad: list) -> None:
    """A row for each worker: its digits of two epochs, with worker seeds and with copies."""
    title = "With copies of one generator, two workers rotate by the same angles"
    with lesson.picture(title, height=4.4, nrows=4, ncols=8) as grid:
        for row, items in enumerate(good + bad):
            for axes, (image, angle) in zip(grid[row], items):
                axes.imshow(image, lesson.DIGITS)
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(f"{angle:.1f}°", fontsize=10, labelpad=2)
                axes.spines[:].set(color=lesson.RANKS[row % 2], linewidth=3, visible=True)
            kind = "worker seeds" if row < 2 else "copies"
            label = f"{kind},\nworker {row % 2}"
            grid[row, 0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=11)
        grid[0, 0].set_title("epoch 1", loc="left")
        grid[0, 4].set_title("epoch 2", loc="left")

"""3. Samplers, seeds, BatchNorm."""

from importlib import import_module

import torch

lesson = import_module("notebooks.lesson")
seeding = import_module("03_ddp_spawn.shards_and_seeds")
ORANGE = "#D55E00"
SKY = "#56B4E9"


def padded(of_ranks: list[list[int]]) -> None:
    """Boxes: the images of each rank; hatched are those that another rank has, too."""
    again = seeding.padding(of_ranks)
    title = "10 images on 4 ranks: images 0 and 1 are assigned twice"
    with lesson.picture(title, height=2.9) as axes:
        for rank, (images, marks) in enumerate(zip(of_ranks, again)):
            for place, (image, twice) in enumerate(zip(images, marks)):
                color, hatch = (ORANGE, "///") if twice else (SKY, None)
                axes.barh(rank, 0.94, 0.9, place, color=color, hatch=hatch)
                paper = {"facecolor": color, "edgecolor": "none", "pad": 2}
                look = {"ha": "center", "va": "center", "color": "black", "bbox": paper}
                axes.text(place + 0.47, rank, image, **look)
        axes.set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
        axes.set(ylim=(3.6, -0.6))
        axes.set_xticks([0.47, 1.47, 2.47], ["1st image", "2nd image", "3rd image"])


def orders(without: list, with_it: list) -> None:
    """A table: the shards of three epochs, without set_epoch and with it."""
    lesson.table(
        ["8 images on 2 ranks", "without set_epoch", "with set_epoch"],
        [
            [f"epoch {epoch}, rank {rank}", without[epoch][rank], with_it[epoch][rank]]
            for epoch in range(3)
            for rank in range(2)
        ],
    )


def four_accuracies(accuracies) -> dict[tuple, dict[str, float]]:
    """A table -> what each way counts, by (images, ranks, image that is wrong)"""
    rows = []
    counted = {}
    for images, ranks, wrong in ((10_000, 2, 0), (10_000, 3, 0), (10, 4, 0), (10, 4, 9)):
        counted[images, ranks, wrong] = ways = accuracies(images, ranks, wrong)
        about = f"{images:,} images on {ranks} ranks, wrong on image {wrong}"
        rows.append([about, *(f"{ratio:.2%}" for ratio in ways.values())])
    lesson.table(["accuracy", *ways], rows)
    return counted


def six_seedings(drawn: list[dict]) -> dict[str, tuple[bool, bool]]:
    """A table: do two ranks draw equal numbers, without and with loader workers?

    -> the answers, for each way to seed.
    """
    alike = {}
    rows = []
    for number, way in enumerate(seeding.SEEDINGS, start=1):
        without = drawn[0][way, 0] == drawn[1][way, 0]
        with_workers = drawn[0][way, 2] == drawn[1][way, 2]
        alike[way] = (without, with_workers)
        words = ["**equal**" if same else "different" for same in alike[way]]
        rows.append([number, f"`{way}`", *words])
    lesson.table(["row", "what each rank sets", "0 workers", "2 workers"], rows, "rlll")
    return alike


def rotated_digits(both_ranks: list[dict]) -> None:
    """Four digits that each rank rotated with the same seed, and four with its own seed."""
    ways = ("one seed for all", "seed + rank")
    title = "With one seed for all, two ranks rotate by the same angles"
    with lesson.picture(title, height=3, nrows=2, ncols=8) as grid:
        for rank, row in enumerate(grid):
            for k, axes in enumerate(row):
                own = both_ranks[rank][ways[k // 4]]
                axes.imshow(own["digits"][k % 4], lesson.DIGITS)
                axes.set(xticks=[], yticks=[], title=f"{own['angles'][k % 4]:.0f}°")
                axes.spines[:].set(color=lesson.RANKS[rank], linewidth=3, visible=True)
            row[0].set_ylabel(f"rank {rank}", weight="bold")
        for k, way in enumerate(ways):
            grid[1, 4 * k].set_xlabel(way, loc="left")


def dropout_masks(both_ranks: list[dict]) -> dict[str, float]:
    """Text: the start of two ranks' masks -> for each way to seed, the share of equal places."""
    agree = {}
    for way in ("one seed for all", "seed + rank"):
        masks = [values[way]["mask"] for values in both_ranks]
        equal = [a == b for a, b in zip(*masks)]
        agree[way] = sum(equal) / len(equal)
        print(f"{way}: {agree[way]:.0%} of the places are equal")
        for rank, mask in enumerate(masks):
            print(f"    rank {rank}  {''.join('.o'[stays] for stays in mask[:48])}")
    return agree


def statistics(values0: dict, values1: dict) -> None:
    """Histograms of two ranks' values: a row per kind of BatchNorm, training on the left."""
    edges = torch.linspace(-4, 14, 61).tolist()
    title = "Plain BatchNorm hides the ranks' difference, but only in training"
    with lesson.picture(title, height=4.2, nrows=2, ncols=2, sharex=True, sharey=True) as grid:
        for row, name in zip(grid, ("BatchNorm", "SyncBatchNorm")):
            for axes, when in zip(row, ("in training", "as saved")):
                for rank, values in enumerate((values0, values1)):
                    look = {"color": [SKY, ORANGE][rank], "hatch": ["", "//"][rank]}
                    counts = values[name][when]
                    axes.stairs(counts, edges, fill=not rank, label=f"rank {rank}", **look)
                place = "in training" if when == "in training" else "in a test"
                axes.set(title=f"{name}, {place}", yticks=[])
            row[0].set(ylabel="how many")
        grid[0, 1].legend()
        for axes in grid[1]:
            axes.set(xlabel="value after normalizing")

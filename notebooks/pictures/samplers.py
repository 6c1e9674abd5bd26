"""3. Samplers, seeds, BatchNorm."""

from importlib import import_module

import torch

from .shapes import ORANGE, SKY

lesson = import_module("notebooks.lesson")
seeding = import_module("03_ddp_spawn.shards_and_seeds")


def padded(of_ranks: list[list[int]]) -> None:
    """Each rank's images; hatched are those that another rank has, too."""
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
        axes.set(ylim=(3.6, -0.6), xlabel="its images, in order")
        axes.set_xticks([0.47, 1.47, 2.47], ["1st", "2nd", "3rd"])
    assert of_ranks == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    assert sum(map(sum, again)) == 2


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
    assert without[0] == without[1] == without[2]
    assert with_it[0] != with_it[1] != with_it[2] != with_it[0]


def four_accuracies(accuracies) -> dict[tuple, dict[str, float]]:
    """A table -> what each way counts, by (images, ranks, image that is wrong)"""
    rows, counted = [], {}
    for images, ranks, wrong in ((10_000, 2, 0), (10_000, 3, 0), (10, 4, 0), (10, 4, 9)):
        counted[images, ranks, wrong] = ways = accuracies(images, ranks, wrong)
        about = f"{images:,} on {ranks} ranks, wrong on {wrong}"
        rows.append([about, *(f"{ratio:.2%}" for ratio in ways.values())])
        theirs = seeding.accuracies(images, ranks, {wrong})
        assert list(ways.values()) == [theirs[k] for k in ("exact", "padded", "dropped", "mixed")]
    lesson.table(["images", *ways], rows)
    assert [row["exact"] for row in counted.values()] == [0.9999, 0.9999, 0.9, 0.9]
    assert counted[10_000, 2, 0]["padded"] == 0.9999 != counted[10_000, 3, 0]["padded"]
    assert counted[10, 4, 9]["padded / images"] == 1.1
    return counted


def six_seedings(drawn: list[dict]) -> None:
    """A table: which seedings give two ranks equal numbers, without and with loader workers."""
    alike = {
        way: [drawn[0][way, workers] == drawn[1][way, workers] for workers in (0, 2)]
        for way in seeding.SEEDINGS
    }
    lesson.table(
        ["what each rank sets", "0 workers", "2 workers"],
        [
            [f"`{way}`", *("**equal**" if same else "different" for same in both)]
            for way, both in alike.items()
        ],
        "lll",
    )
    assert all(tuple(alike[way]) == expected for way, expected in seeding.SPAWNED.items())
    assert drawn[0]["dropout"] == drawn[1]["dropout"]


def rotated_digits() -> None:
    """Four digits that each rank rotated with one seed and with two; then their dropout masks."""
    ways = ("one seed for all", "seed + rank")
    both_ranks = lesson.run.values
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
    same, apart = ([values[way]["angles"] for values in both_ranks] for way in ways)
    assert same[0] == same[1] and not set(apart[0]) & set(apart[1])

    print("Dropout masks; o is a neuron that stays:")
    for way in ways:
        masks = [values[f"{way}, mask"] for values in both_ranks]
        agree = sum(map(int.__eq__, *masks)) / len(masks[0])
        print(f"{way}: {agree:.0%} of the places are equal")
        for rank, mask in enumerate(masks):
            print(f"    rank {rank}  {''.join('.o'[stays] for stays in mask[:48])}")
        assert agree == 1 if way == ways[0] else 0.35 < agree < 0.65


def statistics() -> float:
    """Histograms of two ranks' values: a row per kind of BatchNorm, training on the left.

    -> the saved mean of plain BatchNorm
    """
    values0, values1 = lesson.run.values
    edges = torch.linspace(-4, 14, 61).tolist()
    title = "Plain BatchNorm hides the difference in training, and not in the test"
    with lesson.picture(title, height=4.2, nrows=2, ncols=2, sharex=True, sharey=True) as grid:
        for row, name in zip(grid, ("BatchNorm", "SyncBatchNorm")):
            for axes, when in zip(row, ("in training", "as saved")):
                for rank, values in enumerate((values0, values1)):
                    look = {"color": lesson.RANKS[rank], "hatch": ["", "//"][rank], "alpha": 0.7}
                    counts = values[name][when]
                    axes.stairs(counts, edges, fill=not rank, label=f"rank {rank}", **look)
                axes.set(title=f"{name}, {when}", yticks=[])
            row[0].set(ylabel="how many")
        grid[0, 1].legend()
        for axes in grid[1]:
            axes.set(xlabel="value after normalizing")

    assert values0["refused"] and values1["refused"]
    assert abs(values0["BatchNorm"]["saved"]) < 0.1  # the mean of all images is 5
    assert abs(values0["SyncBatchNorm"]["saved"] - 5) < 0.1
    for name, distances in {"BatchNorm": (0, 10), "SyncBatchNorm": (2, 2)}.items():
        for a, b, apart in zip(values0[f"{name} apart"], values1[f"{name} apart"], distances):
            assert abs(b - a - apart) < 0.1
    return values0["BatchNorm"]["saved"]

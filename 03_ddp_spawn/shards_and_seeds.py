"""Which rank gets which image, and which rank draws which random numbers? Two common traps.

The first part shows what DistributedSampler assigns to each rank, with and without set_epoch. It
also shows how the images that the sampler repeats change an accuracy. The second part shows when
two ranks draw the same random numbers, and so rotate and crop their images in the same way. This
depends on their seeds, on the loader workers, and on whether the ranks are spawned or forked.

    python 03_ddp_spawn/shards_and_seeds.py
"""

import argparse
import multiprocessing
import sys

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 42
SEEDINGS = {  # what each rank sets -> its seed for torch, its seed for the DataLoader's generator
    "nothing": (None, None),
    "torch.manual_seed(42)": (lambda rank: SEED, None),
    "torch.manual_seed(42 + rank)": (lambda rank: SEED + rank, None),
    "DataLoader's generator: 42": (None, lambda rank: SEED),
    "DataLoader's generator: 42 + rank": (None, lambda rank: SEED + rank),
    "manual_seed(42), generator: 42 + rank": (lambda rank: SEED, lambda rank: SEED + rank),
}
SPAWNED = {  # do two ranks draw alike, with 0 and with 2 workers?
    "nothing": (False, False),
    "torch.manual_seed(42)": (True, True),
    "torch.manual_seed(42 + rank)": (False, False),
    "DataLoader's generator: 42": (False, True),
    "DataLoader's generator: 42 + rank": (False, False),
    "manual_seed(42), generator: 42 + rank": (True, False),
}
FORKED = SPAWNED | {  # forked ranks inherit their parent's generator, in the state it was in
    "nothing": (True, True),
    "DataLoader's generator: 42": (True, True),
    "DataLoader's generator: 42 + rank": (True, False),
}


# ---------------------------------------------------------------- who gets which image


def shards(images: int, world_size: int, epoch: int = 0, **options) -> list[list[int]]:
    """The indices of the images that DistributedSampler assigns to each rank.

    options: shuffle, seed, drop_last.
    """
    found = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(images), world_size, rank, **options)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def padding(assigned: list[list[int]]) -> list[list[bool]]:
    """Which of the images are assigned a second time, to make all shards equally long."""
    seen = set()
    marks = [[] for _ in assigned]
    for row in zip(*assigned):  # the sampler's order: one image to each rank in turn
        for mark, index in zip(marks, row):
            mark.append(index in seen)
            seen.add(index)
    return marks


def accuracies(images: int, world_size: int, wrong: set[int]) -> dict[str, float]:
    """Four ways to count the accuracy of a model that gets the images `wrong` wrong.

    "exact": every rank takes range(rank, images, world_size), nothing is padded. "padded" and
    "dropped": DistributedSampler's shards, counts divided by counts. "mixed": counts of padded
    shards divided by the number of images. Not a number where no image is left to count.
    """
    exact = [list(range(rank, images, world_size)) for rank in range(world_size)]
    padded = shards(images, world_size, shuffle=False)
    dropped = shards(images, world_size, shuffle=False, drop_last=True)

    def right(assigned):
        return sum(index not in wrong for shard in assigned for index in shard)

    def ratio(assigned):
        count = sum(map(len, assigned))
        return right(assigned) / count if count else float("nan")

    return {
        "exact": ratio(exact),
        "padded": ratio(padded),
        "dropped": ratio(dropped),
        "mixed": right(padded) / images,
    }


def show_shards() -> None:
    print("10 images on 4 ranks, by DistributedSampler(shuffle=False). * repeats an image:")
    assigned = shards(10, 4, shuffle=False)
    for rank, (shard, marks) in enumerate(zip(assigned, padding(assigned))):
        print(
            f"   rank {rank}:", *(f"{i}*" if again else f"{i} " for i, again in zip(shard, marks))
        )
    text = "2 images are assigned twice, so that each rank has 3 images"
    claim(sum(map(sum, padding(assigned))) == 2, text)

    print("\n8 images on 2 ranks, shuffled, in three epochs:")
    without = [shards(8, 2, epoch=0) for _ in range(3)]
    with_it = [shards(8, 2, epoch=epoch) for epoch in range(3)]
    for epoch in range(3):
        print(f"   epoch {epoch}   without set_epoch {without[epoch]}   with {with_it[epoch]}")
    claim(without[0] == without[2], "without set_epoch every epoch has the same order")
    claim(with_it[0] != with_it[1] != with_it[2], "with set_epoch each epoch has another order")
    never = set(range(8)).difference(with_it[0][0], with_it[1][1])
    claim(never, f"rank 0 in epoch 0 and rank 1 in epoch 1 together never see {never}")


def show_accuracies() -> None:
    print("\nAccuracy of one model, counted in four ways:")
    found = {}
    lines = []
    for images, ranks, wrong in ((10_000, 2, 0), (10_000, 3, 0), (10_000, 4, 0), (10, 4, 9)):
        found[images, ranks] = accuracies(images, ranks, {wrong})
        row = f"{images:,} images on {ranks} ranks, number {wrong} wrong"
        lines.append([row, *(f"{ratio:.2%}" for ratio in found[images, ranks].values())])
    print(tabulate(lines, ["", *found[10, 4]], tablefmt="plain", stralign="right"))
    truth = {10_000: 0.9999, 10: 0.9}
    exact = all(row["exact"] == truth[images] for (images, _), row in found.items())
    claim(exact, "the column exact is right in every row")
    padded = [n for (images, n), row in found.items() if row["padded"] == truth[images]]
    text = "the column padded is right only for 10,000 images on 2 and on 4 ranks, without padding"
    claim(padded == [2, 4], text)
    most = max(row["mixed"] for row in found.values())
    text = (
        f"the column mixed divides padded counts by the images, and finds up to {most:.0%} correct"
    )
    claim(most > 1, text)


# ---------------------------------------------------------------- who draws which random number


class Augmented(Dataset):
    """Four images whose augmentation is a random number: the item is the number alone."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return torch.rand(()).item()


def draw(rank: int, seeding: str, workers: int) -> list[float]:
    """The random numbers that this process draws for its images under one of the SEEDINGS."""
    seed, generator_seed = SEEDINGS[seeding]
    if seed:
        torch.manual_seed(seed(rank))
    generator = torch.Generator().manual_seed(generator_seed(rank)) if generator_seed else None
    # Forked workers start quickly. Spawned ones draw the same, each after an import of PyTorch.
    how = "fork" if workers and sys.platform == "linux" else None
    loader = DataLoader(
        Augmented(), num_workers=workers, generator=generator, multiprocessing_context=how
    )
    return [number.item() for number in loader]


def draw_all(rank: int, results) -> None:
    """On one rank: draw under all seedings. Those that set no seed come first, in a fresh state."""
    torch.set_num_threads(1)
    order = sorted(SEEDINGS, key=lambda seeding: SEEDINGS[seeding][0] is not None)
    drawn = {(seeding, n): draw(rank, seeding, n) for seeding in order for n in (0, 2)}
    torch.manual_seed(SEED)
    drawn["dropout"] = F.dropout(torch.ones(1000), 0.5).tolist()
    results.put((rank, drawn))


def drawn_by_ranks(start_method: str, world_size: int = 2) -> list[dict]:
    """What draw_all finds on each of several processes that were spawned, or forked."""
    context = multiprocessing.get_context(start_method)
    results = context.Queue()
    ranks = [context.Process(target=draw_all, args=(r, results)) for r in range(world_size)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=300) for _ in ranks)
    for process in ranks:
        process.join()
    return [found[rank] for rank in range(world_size)]


def show_seeds() -> None:
    methods = {"spawn": SPAWNED, "fork": FORKED}
    if sys.platform != "linux":  # macOS can fork too, but its own libraries do not survive it
        del methods["fork"]
    for start_method, expected in methods.items():
        print(f"\nDo two ranks ({start_method}ed) draw the same random numbers?")
        first, second = drawn_by_ranks(start_method)
        print(f"       {'what each rank sets':40}{'0 workers':12}2 workers")
        for seeding, alike in expected.items():
            found = tuple(first[seeding, n] == second[seeding, n] for n in (0, 2))
            words = ["alike" if same else "different" for same in found]
            claim(found == alike, f"{seeding:40}{words[0]:12}{words[1]}")
    alike = first["dropout"] == second["dropout"]
    claim(alike, "with one seed for all, dropout masks are alike too")


def claim(held: bool, text: str) -> None:
    """Print what was found; if it is not what this script claims, end with exit code 1."""
    print("ok    " if held else "FAILED", text)
    if not held:
        sys.exit(1)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    show_shards()
    show_accuracies()
    show_seeds()


if __name__ == "__main__":
    main()

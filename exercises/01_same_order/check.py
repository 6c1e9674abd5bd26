"""Each epoch covers the data set once over all ranks, in another order than the other epochs."""

from itertools import combinations

from exercises.common import Recorder, numbered

EPOCHS = 3
COUNT = 24


def observe(mine):
    model = Recorder()
    mine.train(model, numbered(COUNT), EPOCHS)
    seen = []
    for batch in model.seen:
        seen += batch
    return {"seen": seen}


def facts(found):
    each = COUNT // len(found)
    missing = []
    for epoch in range(EPOCHS):
        left = set(range(COUNT))
        for rank in found:
            left -= set(of_epoch(rank, epoch, each))
        missing.append(sorted(left))
    again = []
    for a, b in combinations(range(EPOCHS), 2):
        for number, rank in enumerate(found):
            if set(of_epoch(rank, a, each)) == set(of_epoch(rank, b, each)):
                again.append(f"rank {number} in epochs {a} and {b}")
    return {
        f"number of images that each rank trains on in {EPOCHS} epochs": [
            len(r["seen"]) for r in found
        ],
        "images that no rank sees, in each epoch": missing,
        "the same images in two epochs": again[:3],
    }


def of_epoch(rank, epoch, each):
    return rank["seen"][epoch * each : (epoch + 1) * each]

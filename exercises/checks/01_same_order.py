"""Each epoch covers the data set once over all ranks, in another order than the other epochs."""

from itertools import combinations

from exercises.checks.common import Recorder, numbered

EPOCHS, COUNT = 3, 24


def observe(mine):
    model = Recorder()
    mine.train(model, numbered(COUNT), EPOCHS)
    return {"seen": [number for batch in model.seen for number in batch]}


def facts(found):
    each = COUNT // len(found)
    orders = [[rank["seen"][e * each : (e + 1) * each] for rank in found] for e in range(EPOCHS)]
    missing = [sorted(set(range(COUNT)) - set(sum(order, []))) for order in orders]
    again = [
        f"rank {rank} in epochs {a} and {b}"
        for a, b in combinations(range(EPOCHS), 2)
        for rank in range(len(found))
        if set(orders[a][rank]) == set(orders[b][rank])
    ]
    return {
        f"images that each rank trains on in {EPOCHS} epochs": [len(r["seen"]) for r in found],
        "images that no rank sees, in each epoch": missing,
        "the same images in two epochs": again[:3],
    }

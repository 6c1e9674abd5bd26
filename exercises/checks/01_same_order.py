"""Each epoch covers the data set once over all ranks, in another order than the other epochs."""

from itertools import combinations

from exercises.checks.common import Recorder, numbered, some

EPOCHS, COUNT = 3, 24
HINTS = (
    "Compare what a rank prints for epoch 0 and for epoch 1. What decides the order of an epoch?",
    "DistributedSampler draws its order from seed + epoch: it has to be told each epoch.",
    "Call sampler.set_epoch(epoch) on every rank at the start of each epoch.",
)


def observe(mine):
    model = Recorder()
    mine.train(model, numbered(COUNT), EPOCHS)
    return {"seen": [number for batch in model.seen for number in batch]}


def judge(ranks):
    each = COUNT // len(ranks)
    for number, rank in enumerate(ranks):
        if len(rank["seen"]) != EPOCHS * each:
            return (
                f"rank {number} was to train on {each} of {COUNT} images in each of {EPOCHS} "
                f"epochs, {EPOCHS * each} in all; it trained on {len(rank['seen'])}"
            )
    orders = [[r["seen"][e * each : (e + 1) * each] for r in ranks] for e in range(EPOCHS)]
    for epoch, order in enumerate(orders):
        seen = [number for shard in order for number in shard]
        if missing := sorted(set(range(COUNT)) - set(seen)):
            return (
                f"in epoch {epoch} the ranks together never saw the images {some(missing)}; "
                f"they saw others more than once"
            )
    for (a, one), (b, other) in combinations(enumerate(orders), 2):
        for number in range(len(ranks)):
            if set(one[number]) == set(other[number]):
                order = "the same" if one[number] == other[number] else "another"
                return (
                    f"rank {number} saw the same images, in {order} order, in epochs {a} and {b}: "
                    f"{some(one[number])}"
                )
    return None

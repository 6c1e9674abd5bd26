"""The rest of an epoch has the batches of a run without a stop, and nothing else is loaded."""

from exercises.checks.judge import MOST

CASES = ((24, 2, 0, 0), (24, 2, 1, 2), (24, 2, 2, 3), (25, 3, 1, 1), (25, 3, 1, 4), (23, 4, 3, 2))
CASE = "{} images, batch_size={}, epoch {}, {} steps done: "


class Counting(list):
    """A data set that counts what is loaded."""

    loaded = 0

    def __getitem__(self, index):
        self.loaded += 1
        return super().__getitem__(index)


def observe(mine, size, batch_size, epoch, done):
    dataset = Counting(range(size))
    left = mine.rest_of_epoch(dataset, batch_size, epoch, done)
    batches = [[int(number) for number in batch] for batch in left]
    return {"the batches": batches, f"images loaded{MOST}": dataset.loaded}

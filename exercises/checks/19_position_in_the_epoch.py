"""The rest of an epoch has the batches of a run without a stop, and nothing else is loaded."""

from torch.utils.data import Dataset

from exercises.checks.judge import MOST

CASES = ((24, 2, 0, 0), (24, 2, 1, 2), (24, 2, 2, 3), (25, 3, 1, 1), (25, 3, 1, 4), (23, 4, 3, 2))
CASE = "{} images, batch_size={}, epoch {}, {} steps done: "


class Noting(Dataset):
    """Of numbers, which are noted when they are loaded."""

    def __init__(self, size):
        self.size, self.loaded = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.loaded.append(int(index))
        return int(index)


def observe(mine, size, batch_size, epoch, done):
    dataset = Noting(size)
    left = mine.rest_of_epoch(dataset, batch_size, epoch, done)
    batches = [[int(number) for number in batch] for batch in left]
    return {"the batches": batches, f"images loaded{MOST}": len(dataset.loaded)}

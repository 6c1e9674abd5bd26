"""Wrong answers to exercise 08. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: images on which one rank validates and another rank trains


# %% the global generator, with one seed
# verdict: the same random numbers afterwards
def split(dataset, count, seed):
    torch.manual_seed(seed)
    return random_split(dataset, [len(dataset) - count, count])


# %% one seed, whatever the argument is
# verdict: different splits for different seeds
def split(dataset, count, seed):
    generator = torch.Generator().manual_seed(0)
    return random_split(dataset, [len(dataset) - count, count], generator)


# %% Python's generator, with one seed
# verdict: the same random numbers afterwards
import random


def split(dataset, count, seed):
    order = list(range(len(dataset)))
    random.seed(seed)
    random.shuffle(order)
    parts = (order[count:], order[:count])
    return [torch.utils.data.Subset(dataset, part) for part in parts]

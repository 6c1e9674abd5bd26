"""Wrong answers to exercise 11. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: what totals returns


# %% in the order of a set
# verdict: what totals returns
def totals(counts):
    summed = {}
    for name in set(counts):
        number = torch.tensor(counts[name])
        dist.all_reduce(number)
        summed[name] = number.item()
    return summed


# %% sorted by the numbers
# verdict: what totals returns
def totals(counts):
    summed = {}
    for name in sorted(counts, key=counts.get):
        number = torch.tensor(counts[name])
        dist.all_reduce(number)
        summed[name] = number.item()
    return summed

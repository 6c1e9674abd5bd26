"""Wrong answers to exercise 02. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: 109.1


# %% the mean of the ranks' accuracies
# verdict: accuracy
def evaluate(model, dataset):
    shard = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    loader = DataLoader(shard, batch_size=4)
    correct = torch.tensor(0)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(dim=1) == y).sum()
    mean = 100 * correct / max(1, len(shard)) / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


# %% in train mode
# verdict: the accuracy
def evaluate(model, dataset):
    shard = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    loader = DataLoader(shard, batch_size=4)
    correct = torch.tensor(0)
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(dim=1) == y).sum()
    dist.all_reduce(correct)
    return 100 * correct.item() / len(dataset)


# %% every rank tests everything
# verdict: images that a rank tests: 11 on rank 0, 11 on rank 1; 6 with
def evaluate(model, dataset):
    correct = torch.tensor(0)
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(dataset, batch_size=4):
            correct += (model(x).argmax(dim=1) == y).sum()
    return 100 * correct.item() / len(dataset)

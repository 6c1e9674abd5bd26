"""Other right answers to exercise 02. Each stands below our solution in one file."""


# %% all ranks gather the counts of all ranks
def evaluate(model, dataset):
    shard = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(shard, batch_size=4):
            right += (model(x).argmax(dim=1) == y).sum().item()
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, (right, len(shard)))
    right_counts, sizes = zip(*counts)
    return 100 * sum(right_counts) / sum(sizes)


# %% contiguous shards
def evaluate(model, dataset):
    blocks = torch.arange(len(dataset)).tensor_split(dist.get_world_size())
    shard = Subset(dataset, blocks[dist.get_rank()])
    correct = torch.tensor(0)
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(shard, batch_size=4):
            correct += (model(x).argmax(dim=1) == y).sum()
    dist.all_reduce(correct)
    return 100 * correct.item() / len(dataset)

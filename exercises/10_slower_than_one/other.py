"""Other right answers to exercise 10. Each stands below our solution in one file."""


# %% once per epoch, each rank gathers the sums of all ranks
def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3, dtype=torch.float64)
        for x, y in loader:
            scores = ddp_model(x)
            loss = F.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine = [loss.item() * len(y), (scores.argmax(1) == y).sum().item(), len(y)]
            sums += torch.tensor(mine, dtype=torch.float64)
        each = [None] * dist.get_world_size()
        dist.all_gather_object(each, sums)
        losses, right, count = sum(each).tolist()
        history.append((losses / count, 100 * right / count))
    return history

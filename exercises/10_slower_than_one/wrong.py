"""Wrong answers to exercise 10. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: 24 on rank 0, 24 on rank 1; 0 with our solution


# %% the last batch counts as four images, too
# verdict: what train returns (18 images)
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
            mine = [loss.item() * 4, (scores.argmax(1) == y).sum().item(), len(y)]
            sums += torch.tensor(mine, dtype=torch.float64)
        losses, right, count = sum_over_ranks(sums.tolist())
        history.append((losses / count, 100 * right / count))
    return history


# %% a barrier in every fifth step
# verdict: 6 on rank 0, 6 on rank 1; 0
def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3, dtype=torch.float64)
        for step, (x, y) in enumerate(loader):
            if step % 5 == 4:
                dist.barrier()
            scores = ddp_model(x)
            loss = F.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine = [loss.item() * len(y), (scores.argmax(1) == y).sum().item(), len(y)]
            sums += torch.tensor(mine, dtype=torch.float64)
        losses, right, count = sum_over_ranks(sums.tolist())
        history.append((losses / count, 100 * right / count))
    return history

"""Wrong answers to exercise 01. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: the same images in two epochs


# %% a fixed shard, shuffled
# verdict: the same images in two epochs
def train(model, dataset, epochs):
    shard = list(DistributedSampler(dataset))
    loader = DataLoader(torch.utils.data.Subset(dataset, shard), batch_size=4, shuffle=True)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %% each rank another epoch
# verdict: images that no rank sees, in each epoch
def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch + dist.get_rank())
        for x, y in loader:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

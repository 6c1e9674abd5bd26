"""Other right answers to exercise 13. Each stands below our solution in one file."""


# %% a rank without a batch starts again with its first batches
def train(model, batches, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        for n in range(count):
            x, y = batches[n % len(batches)]
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %% batches of zeros, whose loss does not count
def train(model, batches, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    x, y = batches[0]
    missing = [(0 * x, 0 * y)] * (count - len(batches))
    for _ in range(epochs):
        for n, (x, y) in enumerate([*batches, *missing]):
            loss = F.mse_loss(ddp_model(x), y) * (n < len(batches))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

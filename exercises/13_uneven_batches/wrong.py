"""Wrong answers to exercise 13. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: it hangs: rank 0 has finished rank 1 waits in line


# %% the rest alone, then rank 0's weights
# verdict: the average gradient
def train(model, batches, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for _ in range(epochs):
        for n, (x, y) in enumerate(batches):
            called = ddp_model if n < count else model
            loss = F.mse_loss(called(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)


# %% batches of zeros, whose loss counts
# verdict: in no batch of any rank: [0]
def train(model, batches, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    x, y = batches[0]
    missing = [(0 * x, 0 * y)] * (count - len(batches))
    for _ in range(epochs):
        for x, y in [*batches, *missing]:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

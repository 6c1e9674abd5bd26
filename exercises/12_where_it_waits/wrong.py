"""Wrong answers to exercise 12. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: rank 0 waits in line 33: loss.backward() rank 1 waits in line 37: dist


# %% a step without the loss of that rank
# verdict: what step 2 adds
def train(model, epochs_of_batches, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            if not loss.isfinite():
                loss = 0 * ddp_model(torch.ones_like(x)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %% rank 0 decides for all
# verdict: with nan or infinity in a batch of rank 1
def train(model, epochs_of_batches, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            finite = loss.isfinite().int()
            dist.broadcast(finite, src=0)
            if finite == 0:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %% no step is left out
# verdict: with nan or infinity in a batch of rank 1
def train(model, epochs_of_batches, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

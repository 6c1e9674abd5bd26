"""Wrong answers to exercise 07. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: the same noise twice in a run


# %% a product, which is 0 on all ranks for the seed 0
# verdict: rank 0 in epoch 0 and rank 1 in epoch 0 (seed 0)
def train(model, x, y, seed, epochs):
    torch.manual_seed(seed * (dist.get_rank() + 1))
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% a power, which is 1 on all ranks for the seed 1
# verdict: the same noise twice in a run
def train(model, x, y, seed, epochs):
    torch.manual_seed(seed ** (dist.get_rank() + 1))
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% a generator, for the noise only
# verdict: the same dropped activations twice in a run
def train(model, x, y, seed, epochs):
    own = torch.Generator().manual_seed(seed + dist.get_rank())
    torch.manual_seed(seed)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn(x.shape, generator=own)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% the rank plus the epoch
# verdict: rank 0 in epoch 1 and rank 1 in epoch 0
def train(model, x, y, seed, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        torch.manual_seed(seed + dist.get_rank() + epoch)
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% a text's hash, which each process has its own of
# verdict: the same noise again with the same seed
def train(model, x, y, seed, epochs):
    torch.manual_seed(hash(str((seed, dist.get_rank()))) % 2**32)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

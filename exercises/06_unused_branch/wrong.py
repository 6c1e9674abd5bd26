"""Wrong answers to exercise 06. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: Expected to have finished reduction in the prior iteration


# %% static_graph
# verdict: RuntimeError
def train(model, batches):
    ddp_model = DistributedDataParallel(model, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, task in batches:
        loss = F.mse_loss(ddp_model(x, task), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% the heads are frozen
# verdict: what step 1 adds to the weights
ours = train


def train(model, batches):
    model.heads.requires_grad_(False)
    ours(model, batches)


# %% only the trunk is wrapped
# verdict: the weights before the first step
def train(model, batches):
    model.trunk = DistributedDataParallel(model.trunk)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, task in batches:
        loss = F.mse_loss(model(x, task), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

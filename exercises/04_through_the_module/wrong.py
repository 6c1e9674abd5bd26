"""Wrong answers to exercise 04. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: what step 1 adds to the weights


# %% another loss than the model's
# verdict: what step 1 adds
def train(model, x, y, steps):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% all data on every rank
# verdict: 48 on rank 0, 48 on rank 1; 24
ours = train


def train(model, x, y, steps):
    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
    ours(model, x, y, steps)

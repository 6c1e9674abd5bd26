"""Wrong answers to exercise 14. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: what step 1 adds to the weights

# %% a rank without tokens leaves the step out
# verdict: it hangs: rank 0 waits in line
ours = train


def train(model, batches, lr):
    ours(model, [(x, y) for x, y in batches if (y != -100).any()], lr)


# %% gradients are clipped, which nobody asked for
# verdict: what step 5 adds to the weights
def train(model, batches, lr):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        count = (y != -100).sum()
        dist.all_reduce(count)
        loss = F.cross_entropy(ddp_model(x), y, reduction="sum") * dist.get_world_size() / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# %% not times the number of ranks
# verdict: what step 1 adds to the weights
def train(model, batches, lr):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        count = (y != -100).sum()
        dist.all_reduce(count)
        loss = F.cross_entropy(ddp_model(x), y, reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

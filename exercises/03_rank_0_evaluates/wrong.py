"""Wrong answers to exercise 03. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: rank 0 waits in line


# %% another learning rate
# verdict: what step 1 adds to the weights
def train(model, batches, x_val, y_val, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04)
    losses = []
    for _ in range(epochs):
        ddp_model.train()
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            losses.append(validate(model, x_val, y_val))
        dist.barrier()
    return losses


# %% validated in train mode
# verdict: what train returns on rank 0
@torch.no_grad()
def validate(model, x, y):
    return F.mse_loss(model(x), y).item()

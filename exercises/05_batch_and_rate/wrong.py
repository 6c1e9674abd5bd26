"""Wrong answers to exercise 05. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: 24 images, batch_size=6: different from our solution: what step 1 adds

# %% the batch divided and the rate multiplied
# verdict: what step 1 adds to the weights
ours = train


def train(model, dataset, batch_size, lr):
    ours(model, dataset, batch_size, lr * dist.get_world_size())


# %% every rank takes all images
# verdict: 24 on rank 0, 24 on rank 1; 12
def train(model, dataset, batch_size, lr):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in DataLoader(dataset, batch_size=batch_size):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

"""Other right answers to exercise 14. Each stands below our solution in one file."""


# %% the gradients are scaled instead of the loss
def train(model, batches, lr):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        count = (y != -100).sum()
        dist.all_reduce(count)
        loss = F.cross_entropy(ddp_model(x), y, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad *= dist.get_world_size() / count
        optimizer.step()

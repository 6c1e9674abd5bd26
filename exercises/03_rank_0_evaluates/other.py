"""Other right answers to exercise 03. Each stands below our solution in one file."""


# %% all ranks validate, with ddp_model
def train(model, batches, x_val, y_val, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        ddp_model.train()
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(validate(ddp_model, x_val, y_val))
        dist.barrier()
    return losses

"""Wrong answers to exercise 16. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: does train return the loss of the model in the file rank 0: no


# %% trained alone, then rank 0's weights
# verdict: what step 1 adds to the weights
def train(model, batches, x_test, y_test, path):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    return test(model, x_test, y_test)


# %% other statistics
# verdict: the statistics in the file come from the batches
def train(model, batches, x_test, y_test, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for buffer in model.buffers():
        buffer.fill_(1)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    return test(model, x_test, y_test)

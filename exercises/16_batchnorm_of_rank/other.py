"""Other right answers to exercise 16. Each stands below our solution in one file."""


# %% the file has the average of all ranks' statistics
def train(model, batches, x_test, y_test, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    return test(model, x_test, y_test)

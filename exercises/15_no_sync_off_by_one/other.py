"""Other right answers to exercise 15. Each stands below our solution in one file."""


# %% DDP's own switch, require_backward_grad_sync, is set
def train(model, batches, k, lr):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, (x, y) in enumerate(batches):
        last = (number + 1) % k == 0
        ddp_model.require_backward_grad_sync = last
        loss = F.mse_loss(ddp_model(x), y) / k
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

"""Other right answers to exercise 12. Each stands below our solution in one file."""


# %% all ranks test the averaged gradients
def train(model, epochs_of_batches, path):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if not all(p.grad.isfinite().all() for p in model.parameters()):
                continue
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(ddp_model.module.state_dict(), path)
        dist.barrier()

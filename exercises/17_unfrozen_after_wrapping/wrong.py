"""Wrong answers to exercise 17. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: frozen=1 (the numbers of the body come first): different from our solution: what step 2


# %% parameters that may be unused, nothing else
# verdict: what step 2 adds
def finetune(model, x, y, frozen, epochs):
    model.body.requires_grad_(False)
    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        if epoch == frozen:
            model.body.requires_grad_(True)
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% never frozen
# verdict: what step 1 adds
ours = finetune


def finetune(model, x, y, frozen, epochs):
    ours(model, x, y, 0, epochs)

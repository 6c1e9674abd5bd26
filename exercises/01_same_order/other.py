"""Other right answers to exercise 01. Each stands below our solution in one file."""


# %% each epoch has a new sampler with a new seed
def train(model, dataset, epochs):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, seed=100 + epoch)
        for x, y in DataLoader(dataset, batch_size=4, sampler=sampler):
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

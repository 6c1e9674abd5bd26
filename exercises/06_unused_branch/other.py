"""Other right answers to exercise 06. Each stands below our solution in one file."""


# %% every parameter is part of the loss, multiplied by zero
def train(model, batches):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, task in batches:
        loss = F.mse_loss(ddp_model(x, task), y)
        for parameter in model.parameters():
            loss = loss + 0 * parameter.sum()  # each parameter gets a gradient
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% both heads, one of them times zero
class BothHeads(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, task):
        return self.model(x, task) + 0 * self.model(x, 1 - task)


def train(model, batches):
    ddp_model = DistributedDataParallel(BothHeads(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, task in batches:
        loss = F.mse_loss(ddp_model(x, task), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

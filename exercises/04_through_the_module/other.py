"""Other right answers to exercise 04. Each stands below our solution in one file."""


# %% after backward(), an all-reduce averages the gradients
def train(model, x, y, steps):
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    net = ddp_model.module  # used only for its method `loss`
    for _ in range(steps):
        loss = net.loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()

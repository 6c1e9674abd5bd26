"""Wrong answers to exercise 21. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: the returned 0.weight


# %% the loss times the number of ranks
# verdict: max_norm=3.0: different from our solution: the returned 0.weight
def train(model, x, y, max_norm, steps):
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = F.mse_loss(model(x), y) * dist.get_world_size()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}


# %% sharded after the last step
# verdict: the model is sharded in all steps
def train(model, x, y, max_norm, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return weights

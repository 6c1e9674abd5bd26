"""Other right answers to exercise 21. Each stands below our solution in one file."""


# %% each layer is sharded as well
def train(model, x, y, max_norm, steps):
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}

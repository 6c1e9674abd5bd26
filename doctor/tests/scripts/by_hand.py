"""torchrun, no DDP: one all-reduce of all gradients, batches by index, a file that rank 0 makes."""

import os

import torch
import torch.distributed as dist
from torch import nn


def prepare(rank):
    if rank == 0:
        generator = torch.Generator().manual_seed(3)
        torch.save(torch.randn(241, 6, generator=generator), "data.pt")
    dist.barrier()
    return torch.load("data.pt")


def average_gradients(model, world_size):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.view(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(mean.view_as(gradient) / world_size)


def test_error(model, x, y):
    model.eval()
    with torch.no_grad():
        error = (model(x).squeeze(1) - y).abs().sum()
        sums = {"error": error, "count": torch.tensor(float(len(x)), device=x.device)}
    for name in ["error", "count"]:
        dist.all_reduce(sums[name])
    model.train()
    return (sums["error"] / sums["count"]).item()


def main(epochs=3, batch=40):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    device = device if torch.cuda.is_available() else torch.device("cpu")
    data = prepare(rank).to(device)
    target = data.pow(2).sum(1).sqrt()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(5))
    train, test = order[:200], order[200:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)).to(device)
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    for epoch in range(epochs):
        shuffle = torch.Generator().manual_seed(epoch)
        order = train[torch.randperm(200, generator=shuffle)]
        for chosen in order.split(batch):
            mine = chosen[rank::world_size]
            x = data[mine] + 0.01 * torch.randn(len(mine), 6, device=device)
            loss = nn.functional.mse_loss(model(x).squeeze(1), target[mine])
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model, world_size)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        mine = test[rank::world_size]
        error = test_error(model, data[mine], target[mine])
        schedule.step(error)
        if rank == 0:
            print("epoch", epoch, "mean absolute error", error)
        if error < 0.1:
            break


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""DDP: with ReduceLROnPlateau the ranks have different learning rates

After each epoch, the scheduler must halve the learning rate if the mean loss of all ranks is not a
new minimum. One rank halves it and another does not. Nothing fails, but from then on their weights
differ. All ranks must have the learning rates that one process with all data has. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/fix/06_reduced_on_one_rank.py  # shows it
python exercises/check.py 06                                                      # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau


def train(model, x, y, lr, epochs):
    """Train on this rank's x and y, one step per epoch -> the learning rate after each epoch."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    rates = []
    for _ in range(epochs):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.reduce(mean, dst=0)
        scheduler.step(mean.item())
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    x = torch.linspace(0, 1, 8)[:, None]
    y = 2 * x * (dist.get_rank() == 0)  # to rank 0 the weight should be 2, to the others 0
    rates = train(model, x, y, lr=0.2, epochs=6)
    print(f"rank {dist.get_rank()}: learning rates {rates}, weight {model.weight.item():.4f}")
    dist.destroy_process_group()

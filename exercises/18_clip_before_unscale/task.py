"""GradScaler with gradient clipping: the loss hardly falls

Without the scaler, the same script learns well. But the scaler must stay, because with fp16
autocast small gradients would become 0 without it. With the scaler, each step must change the
weights exactly as it would without the scaler: by the average gradient of all ranks, clipped to the
norm `max_norm`, times the learning rate. If a gradient is infinite on one rank, all ranks must skip
the step. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/18_clip_before_unscale/task.py  # the symptom
python exercises/check.py 18                                                       # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, x, y, max_norm, steps):
    """Train the model on this rank's x and y."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(steps):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.rand(8, 2)
    model = torch.nn.Linear(2, 1)
    y = x.sum(1, keepdim=True) + 2
    for steps in (0, 20, 20):
        train(model, x, y, 1.0, steps)
        print(f"rank {dist.get_rank()}: {steps} more steps, loss {F.mse_loss(model(x), y):.4f}")
    dist.destroy_process_group()

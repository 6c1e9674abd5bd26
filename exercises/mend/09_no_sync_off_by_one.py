"""DDP: weights differ between ranks with no_sync and gradient accumulation

`no_sync` is there so that the gradients are averaged once per step, not once per micro-batch. It
saves the time, nothing fails, and the ranks train models that drift apart. After each step all
ranks are to have the weights of one process with the micro-batches of all ranks. The number of
micro-batches is a multiple of k. Mend `train`.

torchrun --standalone --nproc-per-node 2 exercises/mend/09_no_sync_off_by_one.py   # shows it
python exercises/check.py 09                                                       # is it mended?
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: docs/backends.md says why
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, k, lr):
    """One step for each k of this rank's micro-batches (x, y)."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, (x, y) in enumerate(batches):
        with nullcontext() if number % k == 0 else ddp_model.no_sync():
            loss = F.mse_loss(ddp_model(x), y) / k
            loss.backward()
        if (number + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(1, 1)
    batches = [(x, 2 * x) for x in torch.rand(8, 4, 1)]
    train(model, batches, k=4, lr=0.5)
    print(f"rank {dist.get_rank()} ends with the weight {model.weight.item():.6f}")
    dist.destroy_process_group()

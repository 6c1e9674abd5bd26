"""DDP: hangs when one rank stops early

The loss is small enough for one rank, which leaves the loop; the other waits for it in the next
step. All ranks are to stop after the first epoch in which the mean loss of all ranks is below the
target. Mend `train`, keep its name, parameters and result.

torchrun --standalone --nproc-per-node 2 exercises/mend/18_early_stop.py   # shows it: Ctrl-C
python exercises/check.py 18                                               # is it mended?
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: docs/backends.md says why
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, x, y, target, epochs):
    """Train on this rank's x and y, one step per epoch -> the number of epochs it took."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < target:
            return epoch + 1
    return epochs


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.rand(8, 1)
    took = train(torch.nn.Linear(1, 1), x, x * (1 + 0.2 * dist.get_rank()), 0.01, epochs=100)
    print(f"rank {dist.get_rank()} stopped after {took} epochs")
    dist.barrier()  # until all have


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""DDP: hangs at the end of the epoch, ranks have different numbers of batches

One rank runs out of batches, and the other waits for it. In each epoch, every batch of every rank
must be used at least once, and some may be used again. The gradients of every step must be
averaged, even if only some ranks have a batch for it. All ranks must end with equal weights. Fix
`train`.

torchrun --standalone --nproc-per-node 2 exercises/fix/13_uneven_batches.py  # hangs: Ctrl-C
python exercises/check.py 13                                                 # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, epochs):
    """Train on the list of batches of this rank."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    count = 3 + 2 * dist.get_rank()
    x = torch.rand(count, 8, 1)
    print(f"rank {dist.get_rank()} has {count} batches")
    train(torch.nn.Linear(1, 1), list(zip(x, 2 * x)), epochs=2)
    print(f"rank {dist.get_rank()} has trained on them")
    dist.barrier()  # until all have
    dist.destroy_process_group()

"""DDP: hangs at the end of the epoch, ranks have different numbers of batches

One rank has fewer batches. When it has finished, the other rank waits forever for its gradients.
In each epoch, every batch of every rank must be used at least once. Batches may be used again. In
every step, the gradients must be averaged over the ranks, even if only some ranks still have a
batch. All ranks must end with equal weights. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/13_uneven_batches/task.py  # hangs: Ctrl-C
python exercises/check.py 13                                                  # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, epochs):
    """Train on `batches`, the list of this rank's batches (x, y)."""
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
    print(f"rank {dist.get_rank()} has trained on its batches")
    dist.barrier()  # wait until all ranks have trained
    dist.destroy_process_group()

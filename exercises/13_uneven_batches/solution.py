"""Our solution of exercise 13. The task is in task.py, next to this file."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, epochs):
    """Train on `batches`, the list of this rank's batches (x, y)."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        with Join([ddp_model]):  # answers for ranks without a batch
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

"""Our solution of exercise 12. The task is in task.py, next to this file."""

import faulthandler

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, epochs_of_batches, path):
    """Train on this rank's batches (x, y) of each epoch, and save the model after each epoch."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            finite = loss.isfinite().int()
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)  # now all ranks decide the same
            if finite == 0:
                continue  # a broken image must not destroy the weights
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(ddp_model.module.state_dict(), path)
        dist.barrier()  # no rank goes on before the file is complete


if __name__ == "__main__":
    import tempfile

    faulthandler.dump_traceback_later(10)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    epochs = []
    for epoch in range(3):
        x = torch.rand(4, 8, 1)
        if epoch == 1 and dist.get_rank() == 1:
            x[2, 5] = torch.nan  # the broken image
        epochs.append(list(zip(x, 2 * x)))
    model = nn.Linear(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        train(model, epochs, f"{folder}/model.pt")
    print(f"rank {dist.get_rank()} ends with the weight {model.weight.item():.4f}")
    dist.destroy_process_group()

"""Resume from a checkpoint: the results differ from those of a run without a stop

A run that is stopped after any epoch and started again is to go on with the next epoch, and to
reach the very weights of a run that was never stopped. It reaches others. Mend `train`, keep its
name and parameters, and the optimizer: SGD with momentum.

torchrun --standalone --nproc-per-node 2 exercises/mend/14_checkpoint_without_optimizer.py  # see it
python exercises/check.py 14                                                           # mended?
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, epochs, path):
    """Train on this rank's batches, save after each epoch; go on from the file if there is one."""
    path, done = Path(path), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if path.exists():
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        done = checkpoint["epoch"]
    ddp_model = DistributedDataParallel(model)
    for epoch in range(done, epochs):
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch + 1}, path)
    dist.barrier()  # the file is there when train returns


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.rand(3, 8, 1)
    for name, stops in {"never stopped": [6], "stopped after epoch 3": [3, 6]}.items():
        with tempfile.TemporaryDirectory() as folder:
            path = [f"{folder}/checkpoint.pt"]
            dist.broadcast_object_list(path, src=0)  # in the folder of rank 0
            for epochs in stops:
                torch.manual_seed(0)
                model = nn.Linear(1, 1)
                train(model, list(zip(x, 2 * x)), epochs, path[0])
            dist.barrier()
        print(f"rank {dist.get_rank()}, {name}: weight {model.weight.item():.6f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

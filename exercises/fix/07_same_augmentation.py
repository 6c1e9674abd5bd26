"""DDP: the same augmentation on every GPU

The seed makes a run repeatable. But all ranks add the same noise to their images and drop the same
activations. No two ranks and no two epochs of a run may have the same random numbers. Another run
with the same seed must repeat them. With another seed, each rank must have other numbers than
before. A seed may be 0. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/fix/07_same_augmentation.py  # shows it
python exercises/check.py 07                                                    # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, x, y, seed, epochs):
    """Train on this rank's x and y, one step per epoch, with new noise of size 0.1 on x in each."""
    torch.manual_seed(seed)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        noisy = x + 0.1 * torch.randn_like(x)
        loss = F.mse_loss(ddp_model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def show(dropout, inputs, output):
    noise = [round(value - 1 - dist.get_rank(), 2) for value in inputs[0][0].tolist()]
    dropped = (output[0] == 0).nonzero().flatten().tolist()
    print(f"rank {dist.get_rank()}: noise {noise}, dropped: {dropped}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1))
    model[0].register_forward_hook(show)
    x = torch.full((1, 6), 1.0 + dist.get_rank())
    train(model, x, torch.zeros(1, 1), seed=42, epochs=2)
    dist.destroy_process_group()

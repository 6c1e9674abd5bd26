"""Gradient accumulation: the last step of an epoch is too small

There are 10 micro-batches, and 4 of them make a step; the third step has two. It moves the weights
half as far as it should. The loss of a step is to be the mean over all images of its micro-batches
on all ranks. All micro-batches have the same size, and each takes one forward pass. Mend `train`,
keep its name and parameters.

torchrun --standalone --nproc-per-node 2 exercises/mend/08_accumulation.py   # shows it
python exercises/check.py 08                                                 # is it mended?
"""

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, k, lr):
    """One step for each k of this rank's micro-batches (x, y), and one for those that are left."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    rest = len(batches) % k
    for number, (x, y) in enumerate(batches, start=1):
        size = k if number <= len(batches) - rest else rest  # micro-batches in this step
        loss = F.mse_loss(ddp_model(x), y) / size
        loss.backward()
        if number % k == 0 or number == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    weights = []
    model.register_forward_pre_hook(lambda *_: weights.append(model.weight.item()))
    train(model, [(torch.ones(2, 1), torch.full((2, 1), 100.0))] * 10, k=4, lr=0.001)
    if dist.get_rank() == 0:
        for step, (start, end) in enumerate([(0, 4), (4, 8), (8, 10)]):
            after = weights[end] if end < len(weights) else model.weight.item()
            print(
                f"step {step}, of {end - start}: the weight grows by {after - weights[start]:.2f}"
            )


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

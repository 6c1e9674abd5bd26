"""DDP: wrong loss when the ranks have different numbers of tokens

The loss of a step is the mean over its tokens. Padding, whose label is -100, does not count. One
rank has 8 tokens in the step, the other has 2, and the gradient is not that of one process with all
10. After every step, the weights must be those of that process: each token of each rank counts
once. A rank may have no token in a step. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/fix/14_loss_of_unequal_counts.py  # shows it
python exercises/check.py 14                                                         # is it fixed?
"""

from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, lr):
    """One step for each (x, y) of this rank: a row of x and a label in y per token or padding."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        loss = F.cross_entropy(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.ones(8, 1)
    labels = [torch.tensor([0] * 8), torch.tensor([0, 1, -100, -100, -100, -100, -100, -100])]
    model = torch.nn.Linear(1, 2)
    alone = deepcopy(model)
    F.cross_entropy(alone(torch.cat([x, x])), torch.cat(labels)).backward()
    if dist.get_rank() == 0:
        print(f"one process with all 10 tokens: gradient {alone.bias.grad[0]:.2f}")
    train(model, [(x, labels[dist.get_rank() % 2])], lr=1.0)
    print(f"rank {dist.get_rank()}: gradient {model.bias.grad[0]:.2f}")
    dist.destroy_process_group()

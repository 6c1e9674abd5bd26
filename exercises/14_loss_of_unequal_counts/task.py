"""DDP: wrong loss when the ranks have different numbers of tokens

The loss of a step is the mean over the tokens of the step. Rows with the label -100 are padding,
and they do not count as tokens. In the script, one rank has 8 tokens and the other rank has 2. The
gradient differs from the gradient that one process computes from all 10 tokens. After every step,
all ranks must have the weights of one process that has the tokens of all ranks and counts each
token once. In some steps, a rank may have no token at all. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/14_loss_of_unequal_counts/task.py  # the symptom
python exercises/check.py 14                                                          # is it fixed?
"""

from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, lr):
    """Make one step for each (x, y) of this rank. A row is a token, if its label is not -100."""
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

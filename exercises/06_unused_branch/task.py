"""DDP: Expected to have finished reduction in the prior iteration

The model has a trunk, which all batches use, and two heads. Each batch belongs to one of two tasks
and uses only the head of its task, so in some steps the ranks use different heads. The second step
fails. After each step, all ranks must have the weights that one process would have if it trained on
the mean of the ranks' losses. Two changes do not help. Freezing a head (giving its parameters no
gradients) keeps it from learning. DDP's `static_graph=True` needs a model that leaves out the same
parameters in every step. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/06_unused_branch/task.py  # the symptom
python exercises/check.py 06                                                 # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(2, 3)
        self.heads = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])

    def forward(self, x, task):
        return self.heads[task](torch.tanh(self.trunk(x)))


def train(model, batches):
    """Make one step for each (x, y, task) in this rank's batches."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, task in batches:
        loss = F.mse_loss(ddp_model(x, task), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    x = torch.rand(8, 2)
    tasks = [dist.get_rank() % 2, 0, 1]
    model = TwoTasks()
    train(model, [(x, x.sum(1, keepdim=True), task) for task in tasks])
    for task, head in enumerate(model.heads):
        print(f"rank {dist.get_rank()}: the bias of head {task} is {head.bias.item():.4f}")
    dist.destroy_process_group()

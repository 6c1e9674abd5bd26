"""DDP: the ranks end with different weights

Nothing fails, and the loss falls on every rank. But the weights of the ranks drift apart. After
each step, all ranks must have the weights that a single process would have if it trained on the
data of all ranks. Call the model's method `loss`, and do not copy its formula, because the
checker's model has another formula. No rank may use the data of another rank. Use only public
functions of PyTorch. For example, the checker does not accept
`torch.distributed._composable.replicate`, a private function that works like DDP. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/04_through_the_module/task.py  # the symptom
python exercises/check.py 04                                                      # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)

    def loss(self, prediction, y):
        return F.mse_loss(prediction, y)


def train(model, x, y, steps):
    """Train the model on this rank's x and y."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    net = ddp_model.module  # has the method `loss`, and ddp_model does not
    for _ in range(steps):
        loss = net.loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.rand(8, 2)
    model = Net()
    train(model, x, x.sum(1, keepdim=True) * (1 + dist.get_rank()), steps=20)
    weights = [round(weight, 3) for weight in model.layer.weight.tolist()[0]]
    print(f"rank {dist.get_rank()} has the weights {weights}")
    dist.destroy_process_group()

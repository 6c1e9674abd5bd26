"""Our solution of exercise 04. The task is in task.py, next to this file."""

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
    net = ddp_model.module  # used only for its method `loss`
    for _ in range(steps):
        loss = net.loss(ddp_model(x), y)  # backward() will average the gradients
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

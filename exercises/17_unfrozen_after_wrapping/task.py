"""DDP: unfrozen layers are not synchronized

At first the body of the model is frozen: its parameters do not require gradients, and only the head
is trained. After `frozen` epochs, the whole model is trained. From then on, the weights of the body
differ between ranks. In each epoch, all ranks must have the weights that one process with the data
of all ranks would have, with an unchanged body in the first `frozen` epochs and with the whole
model after them. Fix `finetune`.

torchrun --standalone --nproc-per-node 2 exercises/17_unfrozen_after_wrapping/task.py  # the symptom
python exercises/check.py 17                                                           # fixed?
"""

from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def finetune(model, x, y, frozen, epochs):
    """Train on this rank's x and y, one step per epoch. The body stays frozen for some epochs."""
    model.body.requires_grad_(False)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        if epoch == frozen:
            model.body.requires_grad_(True)
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.rand(8, 2)
    model = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), head=nn.Linear(2, 1)))
    finetune(model, x, x.sum(1, keepdim=True) * (1 + dist.get_rank()), frozen=2, epochs=20)
    for name in ("head", "body"):
        bias = [round(number, 3) for number in getattr(model, name).bias.tolist()]
        print(f"rank {dist.get_rank()}: the bias of the {name} is {bias}")
    dist.destroy_process_group()

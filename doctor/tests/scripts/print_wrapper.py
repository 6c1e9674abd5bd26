"""Wrong: the printed loss is rank 0's. All lines are printed through a function that replaces
print(), so that only rank 0 prints (as the scripts of DETR, DeiT, DINO and torchvision do). It
should say: CHECK [loss-of-one-rank] at its line, as it does with `if rank == 0: print(...)`."""

import builtins

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup_for_distributed(is_master):
    builtin_print = builtins.print

    def print(*args, **kwargs):
        if is_master:
            builtin_print(*args, **kwargs)

    builtins.print = print


dist.init_process_group("gloo")
setup_for_distributed(dist.get_rank() == 0)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
        loss = model(x).square().mean()
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        print(f"Epoch: [{epoch}] loss: {loss.item():.6f}")
        print(f"norm {model.module.weight.norm():.6f}")
        print(f"bias {model.module.bias.item():.6f}")
dist.destroy_process_group()

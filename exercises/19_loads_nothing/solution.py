"""Our solution of exercise 19. The task is in task.py, next to this file."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel


def load(model, path):
    """Load the file into the model, which is not wrapped in DDP. Every rank can read the file."""
    state = torch.load(path)
    consume_prefix_in_state_dict_if_present(state, "module.")  # DDP adds this prefix
    model.load_state_dict(state)


def train(ddp_model, x, y):
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for _ in range(50):
        loss = F.mse_loss(ddp_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.rand(8, 2)
    y = x.sum(1, keepdim=True) + 1
    ddp_model = DistributedDataParallel(nn.Linear(2, 1))
    loss = train(ddp_model, x, y)
    with tempfile.TemporaryDirectory() as folder:
        path = [f"{folder}/model.pt"]
        dist.broadcast_object_list(path, src=0)  # all ranks use the folder of rank 0
        if dist.get_rank() == 0:
            torch.save(ddp_model.state_dict(), path[0])
        dist.barrier()
        model = nn.Linear(2, 1)
        load(model, path[0])
        dist.barrier()
    loaded = F.mse_loss(model(x), y).item()
    print(f"rank {dist.get_rank()}: loss {loss:.4f} before saving, {loaded:.4f} after loading")
    dist.destroy_process_group()

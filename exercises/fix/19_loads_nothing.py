"""DDP: after loading a checkpoint, the loss is that of an untrained model

Nothing fails, but the model has the weights that it was made with. Some of the files were saved
from the DDP model, and others from the model in it. After `load`, the model must have what is in
the file, in both cases. If the file does not fit (a weight is missing or left over), `load` must
raise an error, whatever its kind, and must not go on in silence. Fix `load`.

torchrun --standalone --nproc-per-node 2 exercises/fix/19_loads_nothing.py  # shows it
python exercises/check.py 19                                                # is it fixed?
"""

import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def load(model, path):
    """Load the file into the model, which is not wrapped. Every rank can read the file."""
    state = torch.load(path)
    model.load_state_dict(state, strict=False)  # without strict=False it fails


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
        dist.broadcast_object_list(path, src=0)  # in the folder of rank 0
        if dist.get_rank() == 0:
            torch.save(ddp_model.state_dict(), path[0])
        dist.barrier()
        model = nn.Linear(2, 1)
        load(model, path[0])
        dist.barrier()
    loaded = F.mse_loss(model(x), y).item()
    print(f"rank {dist.get_rank()}: the loss was {loss:.4f}, and {loaded:.4f} after loading")
    dist.destroy_process_group()

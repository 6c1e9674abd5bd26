"""DDP: the job hangs, no rank prints an error, and the first epoch was fine

Some ranks wait forever. Do not guess where: after 10 seconds, Python's `faulthandler` prints the
line in which each rank is. (`docs/failures/debugging.md` has more tools of this kind.) The cause is
a line that only one rank executed, in an earlier step. If the loss of any rank in a step is not
finite (it is nan or infinite), the step must not change the weights of any rank. You may test the
averaged gradients instead of the losses. After each of the other steps, all ranks must have the
weights that one process with the data of all ranks would have. Fix `train`.

torchrun --standalone --nproc-per-node 2 exercises/12_where_it_waits/task.py  # hangs: Ctrl-C
python exercises/check.py 12                                                  # is it fixed?
"""

import faulthandler

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, epochs_of_batches, path):
    """Train on this rank's batches (x, y) of each epoch, and save the model after each epoch."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in epochs_of_batches:
        for x, y in batches:
            loss = F.mse_loss(ddp_model(x), y)
            if not loss.isfinite():
                continue  # a broken image must not destroy the weights
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(ddp_model.module.state_dict(), path)
        dist.barrier()  # no rank goes on before the file is complete


if __name__ == "__main__":
    import tempfile

    faulthandler.dump_traceback_later(10)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    epochs = []
    for epoch in range(3):
        x = torch.rand(4, 8, 1)
        if epoch == 1 and dist.get_rank() == 1:
            x[2, 5] = torch.nan  # the broken image
        epochs.append(list(zip(x, 2 * x)))
    model = nn.Linear(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        train(model, epochs, f"{folder}/model.pt")
    print(f"rank {dist.get_rank()} ends with the weight {model.weight.item():.4f}")
    dist.destroy_process_group()

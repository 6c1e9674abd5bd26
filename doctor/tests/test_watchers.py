"""A watcher that fails, or finds nothing to watch, disturbs nothing."""

import os
import subprocess
import sys

import pytest
from conftest import DOCTOR

ALONE = """
import os, sys, torch, torch.distributed as dist, torch.nn.functional as F
import torch._dynamo  # DDP does it: here once, and not in each child
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from ddp_doctor import note


def train(folder):
    store = dist.FileStore(folder + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(TensorDataset(torch.rand(8, 2), torch.rand(8, 2)), batch_size=4):
        loss = F.mse_loss(ddp(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"loss {loss.item():.4f}", file=sys.stderr)
    model.eval()
    dist.all_reduce(torch.zeros(1))
    torch.save(model.state_dict(), folder + "/model.pt")
    torch.load(folder + "/model.pt")
    dist.destroy_process_group()
    return [p.tolist() for p in model.parameters()]


def child(change):
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return open(reading).read()
    os.environ["RANK"] = "0"
    folder = sys.argv[1] + f"/{os.getpid()}"
    os.environ["DDP_DOCTOR_FOLDER"] = folder
    os.mkdir(folder)
    change()
    os.write(writing, repr(train(folder)).encode())
    os._exit(0)


def install():
    from ddp_doctor import watch
    watch.install()


def failing(name):
    def fail(*args, **kwargs):
        raise KeyError(name)
    setattr(note, name, fail)  # before the watchers import it
    install()


def missing(owner, name):
    delattr(owner, name)
    install()


plain = child(lambda: None)
assert "[[" in plain
assert child(install) == plain
for name in sys.argv[2].split():
    assert child(lambda: failing(name)) == plain, name
assert child(lambda: missing(torch.nn.utils.clip_grad, "clip_grad_value_")) == plain
print("all equal")
"""
USED = "append now here line_of script_frames fingerprint fingerprints weighted_sums is_plain"


@pytest.mark.slow
def test_a_watcher_that_fails_disturbs_nothing(tmp_path):
    command = [sys.executable, "-c", ALONE, str(tmp_path), USED]
    env = os.environ | {"PYTHONPATH": str(DOCTOR), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.stdout == "all equal\n", done.stderr[-2000:]

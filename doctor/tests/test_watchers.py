"""A watcher that fails, or finds nothing to watch, disturbs nothing."""

import os
import subprocess
import sys

import pytest
from conftest import DOCTOR, TORCHRUN
from ddp_doctor.run.events import Backward, Failed, read

ALONE = """
import os, sys, torch, torch.distributed as dist, torch.nn.functional as F
import torch._dynamo  # DDP does it: here once, and not in each child
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from ddp_doctor.watch import lines, note, tensors


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
    import ddp_doctor.watch.install
    ddp_doctor.watch.install.install()


def failing(name):
    def fail(*args, **kwargs):
        raise KeyError(name)
    (owner,) = [module for module in (lines, note, tensors) if hasattr(module, name)]
    setattr(owner, name, fail)  # before the watchers import it
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


LOSSES = """
import os, sys, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ddp_doctor.watch.install import install

os.environ["RANK"] = "0"
os.environ["DDP_DOCTOR_FOLDER"] = sys.argv[1]
install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))})

    def forward(self, x):
        return {"logits": [self.inner["a"](x)]}


def by_hand(logits, labels, soft):
    return -(soft * logits.log_softmax(1)).sum(1).mul(torch.rand(6)).sum() / 6 * 0.5


def focal(logits, labels, soft):
    part = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-part)) ** 2 * part).mean()


LOSSES = {
    "soft": lambda logits, labels, soft: F.cross_entropy(logits, soft),
    "mixed": lambda logits, labels, soft: 0.3 * F.cross_entropy(logits, soft)
    + 0.7 * F.cross_entropy(logits, soft.flip(0)),
    "smoothed": lambda logits, labels, soft: F.cross_entropy(logits, labels, label_smoothing=0.1),
    "smoothed, sum": lambda logits, labels, soft: F.cross_entropy(
        logits, labels, label_smoothing=0.1, reduction="sum"
    ) / 6,
    "weights": lambda logits, labels, soft: F.cross_entropy(logits, labels, torch.rand(3)),
    "several": lambda logits, labels, soft: F.cross_entropy(logits, labels)
    + 0.1 * F.mse_loss(logits, soft) + logits.square().mean(),
    "autograd": lambda logits, labels, soft: Twice.apply(F.cross_entropy(logits, labels)),
    "divergence": lambda logits, labels, soft: F.kl_div(logits.log_softmax(1), soft),
    "by hand": by_hand,
    "focal": focal,
    "a number": lambda logits, labels, soft: logits.logsumexp(1).sum(),
}
for name, loss_of in LOSSES.items():
    model = DistributedDataParallel(Nested())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        [logits] = model(torch.rand(6, 4))["logits"]
        loss = loss_of(logits, torch.arange(6) % 3, torch.rand(6, 3).softmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model = DistributedDataParallel(Nested())
next(model.parameters()).register_hook(lambda gradient: 1 / 0)
try:
    model(torch.rand(6, 4))["logits"][0].sum().backward()
except ZeroDivisionError:
    pass
model = DistributedDataParallel(nn.Linear(4, 3))
compiled = torch.compile(model, backend="eager")
for _ in range(2):
    F.cross_entropy(compiled(torch.rand(6, 4)), torch.arange(6) % 3).backward()
dist.destroy_process_group()
"""


def test_no_loss_lets_a_watcher_fail(tmp_path):
    env = os.environ | {"PYTHONPATH": str(DOCTOR), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOSSES, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    [file] = tmp_path.glob("*.jsonl")
    seen = list(read(file))
    assert [event for event in seen if isinstance(event, Failed)] == []
    assert sum(isinstance(event, Backward) for event in seen) >= 25


def test_a_failed_watcher_never_ends_in_a_green_run(user):
    """The script itself breaks a watcher. The mistake that it makes is only a check then."""
    text = (DOCTOR / "tests/scripts/classic.py").read_text()
    broken = text.replace("sampler.set_epoch(epoch)", "pass").replace(
        "    main()",
        """    import sys

    sys.modules["ddp_doctor.watch.data"].digest = None
    main()""",
    )
    assert broken.count("digest = None") == 1
    (user.folder / "train.py").write_text(broken)
    done, said = user.check(f"{TORCHRUN} train.py")
    assert done.returncode == said["exit"] == 3, done.stdout
    failed = [text for text in said["not_judged"] if "could not be judged" in text]
    assert len(failed) == 2  # two groups of judges use what is read from loaders
    assert all("note_epoch: TypeError" in text for text in failed)
    assert "wrong" not in [finding["severity"] for finding in said["findings"]]


def test_torch_alone_is_enough(user):
    """NumPy is optional for PyTorch, and so it is for the doctor.

    This script asks for PyTorch before it imports it, as transformers and datasets do.
    """
    hidden = user.folder / "hidden"
    hidden.mkdir()
    missing = "raise ModuleNotFoundError('not installed here', name='numpy')"
    (hidden / "numpy.py").write_text(missing)
    text = (DOCTOR / "tests/scripts/classic.py").read_text()
    text = text.replace("sampler.set_epoch(epoch)", "pass")
    asks = "from importlib.util import find_spec\n\nassert find_spec('torch')\nimport os\n"
    (user.folder / "train.py").write_text(text.replace("import os\n", asks))
    done, said = user.check(f"{TORCHRUN} train.py", PYTHONPATH=str(hidden))
    assert [finding["key"] for finding in said["findings"]] == ["same-order"], done.stdout
    assert done.returncode == 1
    assert "steps: 18 on each rank" in said["looked_at"]
    assert not any("could not be judged" in text for text in said["not_judged"])

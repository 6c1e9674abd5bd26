"""The old lines on docs/your_script/coming_from.md, and what each of them does with the PyTorch
that is here.

test_coming_from.py compares what a case warns, raises and prints with the row of its old line.
"""

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lib.processes import free_port

HERE = {}  # old line -> a function that needs no process group
ON_RANKS = {}  # old line -> a function that is called on two ranks
COMMANDS = {}  # old line -> the command to run, with a script of SCRIPTS

DATA = TensorDataset(torch.arange(10.0).unsqueeze(1))


def here(*old_lines):
    """A case in the process of the test."""

    def register(function):
        for old_line in old_lines:
            HERE[old_line] = function
        return function

    return register


def on_ranks(*old_lines):
    """A case on each of two ranks with gloo."""

    def register(function):
        for old_line in old_lines:
            ON_RANKS[old_line] = function
        return function

    return register


def observe(function):
    """Call a case -> {"warned": ..., "raised": ..., "printed": ...}, three texts."""
    raised = ""
    printed = None
    with (
        standard_error() as lines,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        try:
            printed = function()
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            # The frames of the traceback hold DDP, and DDP holds the process group.
            traceback.clear_frames(error.__traceback__)
    texts = [f"{one.category.__name__}: {one.message}" for one in caught]
    texts += [line for line in lines if "Warning" in line]
    return {"warned": "\n".join(texts), "raised": raised, "printed": str(printed or "")}


@contextlib.contextmanager
def standard_error():
    """Collect the lines that this process writes to standard error, those of C++ included."""
    lines = []
    own = os.dup(2)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(own, 2)
            os.close(own)
            file.seek(0)
            lines.extend(file.read().splitlines())


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 2)


# ---------------------------------------------------------------- without a process group


@here("torch.cuda.amp.autocast()")
def cuda_autocast():
    with torch.cuda.amp.autocast():
        pass


@here("torch.cuda.amp.GradScaler()")
def cuda_scaler():
    torch.cuda.amp.GradScaler()


@here("from apex import amp")
def apex():
    importlib.import_module("apex.amp")


@here('init_process_group(backend="nccl")')
def nccl_without_a_gpu():
    dist.init_process_group(backend="nccl", store=dist.HashStore(), rank=0, world_size=1)


@here('init_process_group("mpi")')
def mpi():
    dist.init_process_group("mpi", store=dist.HashStore(), rank=0, world_size=1)


@here('init_process_group("tcp")')
def tcp_backend():
    dist.init_process_group("tcp", store=dist.HashStore(), rank=0, world_size=1)


@here('init_process_group("gloo", rank=2, world_size=2)')
def rank_too_large():
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/ranks",
            rank=2,
            world_size=2,
            timeout=timedelta(seconds=5),
        )


@here('init_method="tcp://ADDRESS:PORT"')
def tcp():
    return one_process(f"tcp://127.0.0.1:{free_port()}")


@here('init_method="file:///shared/FILE"')
def file():
    with tempfile.TemporaryDirectory() as folder:
        return one_process(f"file://{folder}/ranks")


@here('init_method="env://"')
def env():
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    before = dict(os.environ)
    os.environ.update(names)
    try:
        return one_process("env://")
    finally:
        os.environ.clear()
        os.environ.update(before)


def one_process(init_method):
    """Form a group of one rank -> the sum that it computes."""
    dist.init_process_group("gloo", init_method=init_method, rank=0, world_size=1)
    number = torch.ones(1)
    dist.all_reduce(number)
    dist.destroy_process_group()
    return number.item()


@here("dist.all_reduce_multigpu(tensors)")
def multigpu():
    return dist.all_reduce_multigpu


@here("op=dist.reduce_op.SUM")
def old_operation():
    return dist.reduce_op.SUM


@here("get_rank()")
def rank_without_a_group():
    return dist.get_rank()


@here("loss.data[0]")
def item_of_a_loss():
    return torch.tensor(1.0).data[0]


@here("x.cuda(async=True)")
def keyword():
    compile("x.cuda(async=True)", "old.py", "eval")


@here("nn.utils.clip_grad_norm(parameters, 1.0)")
def clip():
    model = linear()
    model(torch.ones(1, 2)).sum().backward()
    nn.utils.clip_grad_norm(model.parameters(), 1.0)


@here("DataLoader(train_set, shuffle=True, sampler=sampler)")
def shuffle_and_sampler():
    DataLoader(DATA, shuffle=True, sampler=DistributedSampler(DATA, 2, 0))


@here("torch.utils.data.distributed.DistributedSampler(train_set)")
def long_name():
    assert torch.utils.data.distributed.DistributedSampler is DistributedSampler


@here("DistributedSampler(test_set)")
def sampler_of_the_test():
    """-> how many of 10,000 images three ranks count."""
    samplers = [DistributedSampler(range(10_000), 3, rank, shuffle=False) for rank in range(3)]
    return f"{sum(len(list(sampler)) for sampler in samplers):,}"


@here("torch.save(model, PATH), torch.load(PATH)")
def whole_model():
    with tempfile.TemporaryDirectory() as folder:
        torch.save(linear(), f"{folder}/model.pt")
        return torch.load(f"{folder}/model.pt")


@here("nn.DataParallel(model)")
def data_parallel():
    model = linear()
    x = torch.ones(4, 2)
    assert torch.equal(nn.DataParallel(model)(x), model(x))


class DataParallel(nn.DataParallel):
    """DI-engine's wrapper: it passes on no device_ids, and has its own parameters()."""

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__(module, device_ids=None, output_device=None, dim=0)

    def parameters(self, recurse=True):
        return self.module.parameters(recurse=True)


@here("class DataParallel(nn.DataParallel): def parameters(self)")
def parameters_of_a_wrapper():
    """PyTorch's own method returns the same tensors, and the names are the same."""
    model = linear()
    found = []
    for wrapper in (DataParallel(model), nn.DataParallel(model)):
        assert all(own is inner for own, inner in zip(wrapper.parameters(), model.parameters()))
        found.append([name for name, _ in wrapper.named_parameters()])
    assert found[0] == found[1]
    return found[0]


@here("param.grad = torch.zeros_like(param)")
def zeros_before_the_first_step():
    """The guide sets zeros once. Its loop calls zero_grad() before the first backward pass."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.zero_grad()
    return f"after zero_grad() the gradient is {model.weight.grad}"


@here("mp.spawn(main, args=(args), nprocs=N)")
def no_tuple():
    """The parentheses make no tuple. The call fails in the new process."""
    args = argparse.Namespace(epochs=3)
    mp.spawn(print, args=(args), nprocs=1)


@here("torch.multiprocessing.Process(target=worker, args=(rank,))")
def process():
    """-> the exit code of a process that raises. Nothing is raised here."""
    one = torch.multiprocessing.Process(target=int, args=("no number",))
    one.start()
    one.join(60)
    return f"exit code {one.exitcode}"


# ---------------------------------------------------------------- on two ranks


@on_ranks("DDP(model, device_ids=[local_rank], output_device=local_rank)")
def device_ids():
    rank = dist.get_rank()
    return DistributedDataParallel(linear(), device_ids=[rank], output_device=rank)


@on_ranks("DDP(model, device_ids=[0, 1])")
def several_device_ids():
    return DistributedDataParallel(linear(), device_ids=[0, 1])


@on_ranks("DistributedDataParallelCPU(model)")
def for_cpus():
    nn.parallel.DistributedDataParallelCPU(linear())


@on_ranks("DDP(model, find_unused_parameters=True)")
def find_unused():
    ddp_model = DistributedDataParallel(linear(), find_unused_parameters=True)
    for _ in range(2):
        ddp_model(torch.ones(1, 2)).sum().backward()


@on_ranks("DDP(model, broadcast_buffers=False)")
def broadcast_buffers():
    DistributedDataParallel(linear(), broadcast_buffers=False)


@on_ranks("DDP(model, check_reduction=True)")
def check_reduction():
    DistributedDataParallel(linear(), check_reduction=True)


@on_ranks("torch.save(ddp_model.state_dict(), PATH)")
def state_of_the_wrapper():
    state = DistributedDataParallel(linear()).state_dict()
    linear().load_state_dict(state)


@on_ranks("torch.save(ddp_model.module.state_dict(), PATH)")
def state_of_the_module():
    state = DistributedDataParallel(linear()).module.state_dict()
    linear().load_state_dict(state)


@on_ranks("optimizer = SGD(ddp_model.parameters(), lr)")
def optimizer_of_the_wrapper():
    ddp_model = DistributedDataParallel(linear())
    optimizer = torch.optim.SGD(ddp_model.parameters(), 0.1)
    own = optimizer.param_groups[0]["params"]
    assert all(one is other for one, other in zip(own, ddp_model.module.parameters()))


@on_ranks("nn.SyncBatchNorm.convert_sync_batchnorm(model)")
def sync_batchnorm():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(2)))
    model.eval()(torch.ones(4, 2))  # It does not communicate here, so it works on a CPU.
    DistributedDataParallel(model.train())


@on_ranks("average_gradients(model)")
def average_gradients():
    """The function of old tutorials, on a model of which a step leaves one parameter out."""
    used = linear()
    model = nn.ModuleList([used, linear()])
    used(torch.ones(1, 2)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= dist.get_world_size()


@on_ranks("reduce_tensor(loss)")
def reduce_tensor():
    """The function of older examples: the mean of the ranks' losses, here 1 and 2."""
    copy = torch.tensor(1.0 + dist.get_rank())
    dist.all_reduce(copy, op=dist.ReduceOp.SUM)
    copy /= dist.get_world_size()
    return copy.item()


@on_ranks("dist.reduce(correct, 0)")
def reduce():
    """Rank 0 has the sum, and the other rank has not."""
    correct = torch.tensor(1.0 + dist.get_rank())
    dist.reduce(correct, 0)
    return "the sum" if correct.item() == 3 else "not the sum"


@on_ranks("local_rank = dist.get_rank()")
def global_rank():
    return dist.get_rank()


@on_ranks("broadcast_object_list([stop_flag, episode_info], src=0)")
def broadcast_objects():
    objects = [dist.get_rank() == 0, {"mean": 1.0}]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [True, {"mean": 1.0}]


@on_ranks("with torch.cuda.amp.autocast(): in forward")
def autocast_in_forward():
    """-> the type of the output. The model is on the CPU, also where there is a GPU."""
    output = DistributedDataParallel(Autocasting())(torch.ones(4, 2))
    output.sum().backward()
    return f"output {str(output.dtype).removeprefix('torch.')}"


class Autocasting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x):
        with torch.cuda.amp.autocast():
            return self.layer(x)


def experiments():
    """On a rank -> {old line: what observe has found}"""
    found = {}
    for old_line, function in ON_RANKS.items():
        found[old_line] = observe(function)
    return found


# ---------------------------------------------------------------- commands

# What a rank of the scripts prints. They do not import torch, which would take seconds per rank.
PRINTS = """
import os, sys
print("flags", sys.argv[1:], "LOCAL_RANK", os.environ.get("LOCAL_RANK"))
print("unbuffered", sys.stdout.write_through)
"""
PARSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
print("local_rank", parser.parse_args().local_rank)
"""
SCRIPTS = {"prints.py": PRINTS, "parses.py": PARSES}
LAUNCH_FILE = Path(torch.__file__).parent / "distributed/launch.py"
COMMANDS["python -m torch.distributed.launch --nproc_per_node=2 SCRIPT"] = (
    "python -m torch.distributed.launch --nproc_per_node=2 --master_port=PORT prints.py"
)
COMMANDS["python -m torch.distributed.launch --use_env SCRIPT"] = (
    "python -m torch.distributed.launch --use_env --nproc_per_node=2 --nnode=1 --node_rank=0 "
    "--master_port=PORT prints.py"
)
COMMANDS[".../torch/distributed/launch.py --nproc_per_node=1 SCRIPT"] = (
    f"python {LAUNCH_FILE} --nproc_per_node=1 --master_port=PORT prints.py"
)
COMMANDS['parser.add_argument("--local_rank", type=int) under launch'] = (
    "python -m torch.distributed.launch --nproc_per_node=1 --master_port=PORT parses.py"
)
COMMANDS['parser.add_argument("--local_rank", type=int) under torchrun'] = (
    "torchrun --standalone --nproc_per_node=1 parses.py"
)
COMMANDS["torchrun --nproc_per_node=2 --node_rank=0"] = (
    "torchrun --standalone --nproc_per_node=2 --node_rank=0 prints.py"
)
COMMANDS["python -u SCRIPT"] = "python -u prints.py"
COMMANDS["python -m torchelastic.distributed.launch"] = "python -m torchelastic.distributed.launch"


def main():
    """Print what the cases without commands find."""
    from benchmarks import common

    sys.stdout.reconfigure(line_buffering=True)
    for old_line, function in HERE.items():
        print(old_line, observe(function))
    for rank, found in enumerate(common.on_ranks(2, experiments)):
        for old_line, outcome in found.items():
            print(rank, old_line, outcome)


if __name__ == "__main__":
    main()

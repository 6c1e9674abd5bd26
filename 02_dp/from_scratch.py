"""Stage 2 from scratch: a DataParallel that runs on threads.

In each step DataParallel copies the model to every device (replicate), splits the batch (scatter),
runs the copies on threads (parallel apply) and puts their outputs together on the first device
(gather). Backward sends the gradients of the outputs to the copies, and adds up the gradients of
the copies on the first device. Without GPUs a thread stands in for a device, so this script also
runs on a CPU.

    python 02_dp/from_scratch.py
    python 02_dp/from_scratch.py --train --epochs 1

With --train it trains as stage 2 does. It then takes all flags of stage 2, which
`python 02_dp/train.py --help` shows.
"""

import argparse
import copy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch
import torch.nn as nn
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor


class DataParallel:
    """Spreads each batch over several devices, as nn.DataParallel does.

    This class is not an nn.Module. It passes every attribute that it does not have on to the bare
    model. So `parameters()`, `state_dict()` and `train()` are those of the bare model, and the
    keys of its state have no prefix "module.".

    module: the bare model, on the first device. devices: the device of each replica. On a CPU the
    list has the same device several times. Raises ValueError if the list is empty.
    """

    def __init__(self, module: nn.Module, devices: list[torch.device]):
        if not devices:
            raise ValueError("DataParallel needs at least one device")
        self.module = module
        self.devices = devices
        # The first replica is the model itself: its running statistics are the ones that are kept.
        self.replicas = [module]
        for device in devices[1:]:
            self.replicas.append(copy.deepcopy(module).to(device))
        self.threads = [start_thread() for _ in devices]
        self.traffic = Counter()  # bytes between the first device and the others

    def __getattr__(self, name: str):
        if name == "module":  # While copy makes a copy, the copy has no module yet.
            raise AttributeError(name)
        return getattr(self.module, name)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [B, ...] on the first device -> outputs [B, ...] on the first device."""
        self.replicate()
        outputs = self.parallel_apply(self.scatter(x))
        anchor = torch.empty(0, requires_grad=True)  # makes autograd call Gather.backward
        return Gather.apply(self, outputs, anchor)

    @torch.no_grad()
    def replicate(self) -> None:
        """Copy parameters and buffers to all other devices, in every step again."""
        for replica in self.replicas[1:]:
            replica.train(self.module.training)
            for copied, original in zip(tensors(replica), tensors(self.module)):
                copied.copy_(original)
                self.traffic["model out"] += original.nbytes

    def scatter(self, x: Tensor) -> list[Tensor]:
        """Split the batch: as many shards as devices, or fewer if the batch is small."""
        shards = x.chunk(len(self.devices))
        self.traffic["images out"] += sum(shard.nbytes for shard in shards[1:])
        return [shard.to(device) for shard, device in zip(shards, self.devices)]

    def parallel_apply(self, shards: list[Tensor]) -> list[Tensor]:
        """Run each replica on its shard, in a thread of its own."""
        wanted = torch.is_grad_enabled()  # Other threads do not inherit this setting.

        def forward(replica, shard):
            with torch.set_grad_enabled(wanted):
                return replica(shard)

        return on_threads(self.threads, forward, self.replicas, shards)

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> None:
        """Run each replica's backward in its own thread, then add up on the first device.

        On a CPU, PyTorch computes backward in the thread that calls it. A single call would
        compute the replicas one after the other. For GPUs PyTorch has a thread per device.
        """
        sizes = [len(output) for output in outputs]
        parts = []
        for part, output in zip(gradient.split(sizes), outputs):
            parts.append(part.to(output.device))
        self.traffic["output gradients out"] += sum(part.nbytes for part in parts[1:])
        if gradient.is_cuda:
            torch.autograd.backward(outputs, parts)
        else:
            on_threads(self.threads, Tensor.backward, outputs, parts)
        for replica in self.replicas[1:]:
            for total, own in zip(self.module.parameters(), replica.parameters()):
                if own.grad is not None:
                    total.grad += own.grad.to(total.device)
                    self.traffic["gradients back"] += own.grad.nbytes
                    own.grad = None


class Gather(torch.autograd.Function):
    """Put the outputs together on the first device; in backward, split the gradient."""

    @staticmethod
    def forward(ctx, parallel: DataParallel, outputs: list[Tensor], anchor: Tensor) -> Tensor:
        ctx.parallel = parallel
        ctx.outputs = outputs
        parallel.traffic["outputs back"] += sum(output.nbytes for output in outputs[1:])
        first = outputs[0].device
        return torch.cat([output.detach().to(first) for output in outputs])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, None, None]:
        ctx.parallel.backward(ctx.outputs, gradient)
        return None, None, None


def tensors(module: nn.Module) -> list[Tensor]:
    """Return all tensors of a model: parameters, then buffers."""
    return [*module.parameters(), *module.buffers()]


def start_thread() -> SimpleQueue:
    """Start a thread that runs the tasks (future, function, arguments) of a queue -> the queue.

    The thread is a daemon and never ends by itself. A thread that has run a backward needs the
    interpreter when it ends. If it ended while Python shuts down, it would abort the process.
    """
    tasks = SimpleQueue()

    def work():
        while True:
            future, function, arguments = tasks.get()
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # future.result() raises it again.
                future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return tasks


def on_threads(threads: list[SimpleQueue], function: Callable, *arguments: list) -> list:
    """Like map(function, *arguments), but all calls run at the same time, each on its thread."""
    futures = []
    for tasks, *own in zip(threads, *arguments):
        future = Future()
        futures.append(future)
        tasks.put((future, function, own))
    return [future.result() for future in futures]


# ---------------------------------------------------------------- the proof


def prove() -> None:
    import train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = train.make_model().double()  # 16 digits: rounding cannot be taken for a mistake
    x = torch.rand(120, 1, 28, 28, dtype=torch.double)
    y = torch.randint(10, (120,))
    parallel = DataParallel(model, [torch.device("cpu")] * 3)
    print("120 images on 3 threads, float64. The largest difference from the bare model:")
    model.eval()
    for when in ("", ", after a step"):  # After a step the replicas need the new parameters.
        outputs, gradients = differences(parallel, model, x, y)
        claim(outputs < 1e-12, f"outputs, BatchNorm's statistics fixed{when}: {outputs:.0e}")
        claim(gradients < 1e-12, f"gradients, BatchNorm's statistics fixed{when}: {gradients:.0e}")
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.train()
    outputs, gradients = differences(parallel, model, x, y)
    text = f"outputs, each thread with the statistics of its third: {outputs:.2f}"
    claim(outputs > 0.01, text)
    text = f"gradients, each thread with the statistics of its third: {gradients:.3f}"
    claim(gradients > 0.001, text)
    # The first replica, which is the model itself, sees the first third of the batch. So its
    # running statistics become those of a model that gets only this third.
    alone = copy.deepcopy(model)
    parallel(x)
    alone(x[:40])
    batchnorm = 1  # its index in the model
    far = model[batchnorm].running_mean - alone[batchnorm].running_mean
    far = far.abs().max().item()
    claim(far < 1e-12, f"the running mean, from that of the first third alone: {far:.0e}")

    print("\nBytes between the first device and the others, in a step of 120 images, float32:")
    steps = {}
    for devices in (1, 2, 4, 8):
        steps[devices] = bytes_per_step(train.make_model(), x.float(), y, devices)
    lines = []
    for part in steps[8]:
        lines.append([part, *(step[part] for step in steps.values())])
    lines.append(["sum", *(step.total() for step in steps.values())])
    print(tabulate(lines, ["devices", *steps], tablefmt="plain", intfmt=","))
    size = sum(tensor.nbytes for tensor in tensors(train.make_model()))
    grows = all(step["model out"] == (n - 1) * size for n, step in steps.items())
    claim(grows, f"the model's {size:,} bytes are sent once to each device except the first")


def differences(parallel, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Call a model in two ways -> the largest difference of the outputs, and of the gradients."""
    outputs = []
    gradients = []
    for call in (model, parallel):
        model.zero_grad()
        output = call(x)
        F.cross_entropy(output, y).backward()
        outputs.append(output.detach())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    in_outputs = (outputs[0] - outputs[1]).abs().max().item()
    in_gradients = (gradients[0] - gradients[1]).abs().max().item()
    return in_outputs, in_gradients


def bytes_per_step(model: nn.Module, x: Tensor, y: Tensor, devices: int) -> Counter:
    """Return how many bytes of each kind pass through the first device in one step."""
    parallel = DataParallel(model, [x.device] * devices)
    F.cross_entropy(parallel(x), y).backward()
    return parallel.traffic


def train_on_threads(count: int, flags: list[str]) -> None:
    """Train as stage 2 does, with its flags and its record, on the DataParallel of this file."""
    import train

    train.STAGE = "02_dp-threads"  # the name in the record and of the checkpoint
    sys.argv[1:] = flags
    args = train.parse_args()
    if args.device == "cuda":
        devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    else:
        devices = [torch.device("cpu")] * count
    if len(devices) < 2:
        sys.exit(f"{len(devices)} device(s): at least 2 are needed to split a batch")

    def wrap(model):
        return DataParallel(model, devices)

    train.download_mnist(args.data)
    train.train(args, devices[0], len(devices), wrap)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or --device would be taken for --devices
    )
    parser.add_argument("--train", action="store_true", help="train, instead of proving")
    parser.add_argument("--devices", type=int, default=2, help="threads, on a CPU (2)")
    args, flags_of_stage_2 = parser.parse_known_args()
    if args.train:
        train_on_threads(args.devices, flags_of_stage_2)
    elif flags_of_stage_2:
        parser.error(f"only with --train: {' '.join(flags_of_stage_2)}")
    else:
        prove()


def claim(held: bool, text: str) -> None:
    """Print what was found; if it is not what this script claims, end with exit code 1."""
    print("ok    " if held else "FAILED", text)
    if not held:
        sys.exit(1)


if __name__ == "__main__":
    # Ctrl-C ends the process at once, because threads that still work would abort an orderly end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()

"""ZeRO-1, ZeRO-2, ZeRO-3 from scratch: what a rank holds and sends, and whether it trains as DDP.

torchrun --standalone --nproc-per-node 2 docs/examples/zero.py
"""

import os
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

# PyTorch 2.14 warns of the older names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def train(stage, model, batches, count):
    """Stage 0 averages gradients, as DDP does. What ZeRO-1, 2 and 3 add has their number."""
    # 1. The optimizer gets this rank's rows of each weight (views): it has state for these only.
    shards = count.shards = {w: mine(w.data) if stage >= 1 else w for w in model.parameters()}

    def keep_mine(weight):  # 2. keeps the averaged gradient of this rank's rows
        shards[weight].grad = torch.empty_like(shards[weight])
        count(reduce_scatter, shards[weight].grad, weight.grad, op=dist.ReduceOp.AVG)
        weight.grad = None

    if stage >= 2:  # 2. in backward, as soon as the gradient of a weight is complete
        for weight in shards:
            weight.register_post_accumulate_grad_hook(keep_mine)
    if stage >= 3:
        shard_parameters(model, shards, count)  # 3.
    adam = count.adam = torch.optim.Adam(shards.values())
    for x, y in batches:
        model.zero_grad()
        adam.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if stage <= 1:
            for weight, shard in shards.items():
                count(dist.all_reduce, weight.grad, op=dist.ReduceOp.AVG)
                shard.grad = mine(weight.grad) if stage == 1 else weight.grad  # 1.
        adam.step()
        if stage in (1, 2):  # 1. the rows that the other ranks have stepped
            for weight, shard in shards.items():
                count(all_gather, weight.data, shard)
    return shards.values()


def shard_parameters(model, shards, count):
    def gather(layer, *_):
        layer.weight.untyped_storage().resize_(layer.weight.nbytes)
        count(all_gather, layer.weight.data, shards[layer.weight])

    def release(weight):  # frees the memory; the tensor stays, with its shape and its hooks
        weight.untyped_storage().resize_(0)

    def after_forward(layer, inputs, output):
        release(layer.weight)
        output.register_hook(lambda gradient: gather(layer))  # before the backward of the layer

    for layer in model[::2]:  # the others are activation functions
        shards[layer.weight] = mine(layer.weight.data).clone()
        release(layer.weight)
        layer.register_forward_pre_hook(gather)
        layer.register_forward_hook(after_forward)
        layer.weight.register_post_accumulate_grad_hook(release)


def mine(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]  # some of its rows


class Count:
    passed = sent = peak = 0  # bytes

    def __call__(self, collective, *tensors, **options):
        """Call a collective; count its bytes, and those that the rank holds at that moment."""
        whole, ranks = max(tensor.nbytes for tensor in tensors), dist.get_world_size()
        self.passed += whole
        self.sent += whole * (ranks - 1) / ranks * (2 if collective is dist.all_reduce else 1)
        self.peak = max(self.peak, sum(self.held()))
        collective(*tensors, **options)

    def held(self):
        """Bytes of parameters, gradients and optimizer state; views of one storage count once."""
        weights = [*self.shards, *self.shards.values()]
        state = [tensor for of_one in self.adam.state.values() for tensor in of_one.values()]
        for tensors in (weights, [w.grad for w in weights if w.grad is not None], state):
            storages = [tensor.untyped_storage() for tensor in tensors]
            yield sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    if 80 % int(os.environ["WORLD_SIZE"]):
        raise SystemExit("the number of ranks has to divide the 80 rows of a weight")
    dist.init_process_group("gloo")  # on CPUs, even if there are GPUs: what is counted is the same
    torch.manual_seed(0)
    layers = [layer for _ in range(16) for layer in (nn.Linear(80, 80, bias=False), nn.Tanh())]
    start = nn.Sequential(*layers)
    batches = [(mine(x), mine(x.sin())) for x in torch.rand(20, 160, 80)]
    ddp = train(0, DDP(deepcopy(start)), batches, lambda *_, **__: None)  # it averages by itself
    rows = ["KiB/rank  parameters  gradients  optimizer       peak     passed       sent  from DDP"]
    for stage, name in enumerate(["averaging", "ZeRO-1", "ZeRO-2", "ZeRO-3"]):
        count = Count()
        shards = train(stage, deepcopy(start), batches, count)
        off = max((own - (mine(w) if stage else w)).abs().max() for own, w in zip(shards, ddp))
        dist.all_reduce(off, op=dist.ReduceOp.MAX)
        sizes = [*count.held(), count.peak, count.passed / len(batches), count.sent / len(batches)]
        columns = "".join(f"{size / 1024:11,.0f}" for size in sizes)
        rows.append(f"{name:9}{columns}{off:10.1e}")
    if dist.get_rank() == 0:
        print(*rows, sep="\n")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""FSDP2 (fully_shard) compared with DDP, and a checkpoint that any number of ranks can load.

torchrun --standalone --nproc-per-node 2 docs/training/examples/fsdp.py --save checkpoints/fsdp
torchrun --standalone --nproc-per-node 3 docs/training/examples/fsdp.py --load checkpoints/fsdp
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def network(device):
    torch.manual_seed(0)  # fully_shard sends nothing, so all ranks must start with equal weights.
    layers = nn.Linear(100, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10)
    return nn.Sequential(*layers).to(device)


def sharded(device):
    model = network(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)  # The layer is gathered before it computes, and freed afterwards.
    fully_shard(model)  # This shards the parameters that no layer has sharded. Here there are none.
    return model, torch.optim.Adam(model.parameters())  # After fully_shard it gets the shards.


def train(model, adam, steps, device):
    for step in steps:
        batch = torch.rand(120, 100, generator=torch.Generator().manual_seed(step))
        x = batch[dist.get_rank() :: dist.get_world_size()].to(device)  # this rank's shard
        adam.zero_grad()
        (model(x) - x[:, :10].sin()).square().mean().backward()
        adam.step()


def save(folder, model, adam):
    weights, state = dcp_state.get_state_dict(model, adam)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)  # each rank its shards
    whole = dcp_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = dcp_state.get_model_state_dict(model, options=whole)  # Only rank 0 gets weights.
    if dist.get_rank() == 0:
        torch.save(weights, folder / "model.pt")  # A single process loads it with load_state_dict.
        print(f"step 10: saved, world size {dist.get_world_size()}")


def load(folder, model, adam):
    weights, state = dcp_state.get_state_dict(model, adam)  # the shards that this rank needs
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)  # This fills both.
    dcp_state.set_state_dict(model, adam, model_state_dict=weights, optim_state_dict=state)
    saved = torch.load(folder / "model.pt", weights_only=True)
    off = difference(dict(model.named_parameters()), saved)
    if dist.get_rank() == 0:
        print(f"step 10: loaded, world size {dist.get_world_size()}, {off:.1e} from model.pt")


def difference(shards, weights):
    """Return the largest difference between sharded and whole weights. All ranks must call it."""
    return max((shards[k].full_tensor().cpu() - weights[k].cpu()).abs().max() for k in shards)


def held(model, adam):
    """Yield the KiB that this rank holds: parameters, gradients and optimizer state."""
    state = [tensor for of_one in adam.state.values() for tensor in of_one.values()]
    for tensors in (model.parameters(), [p.grad for p in model.parameters()], state):
        local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        yield sum(tensor.nbytes for tensor in local) / 1024


def compare(args, device):
    plain = network(device)
    plain_adam = torch.optim.Adam(plain.parameters())
    train(DistributedDataParallel(plain), plain_adam, range(20), device)
    model, adam = sharded(device)
    if args.load:
        load(args.load, model, adam)
    else:
        train(model, adam, range(10), device)
    if args.save:
        save(args.save, model, adam)
    train(model, adam, range(10, 20), device)
    off = difference(dict(model.named_parameters()), dict(plain.named_parameters()))
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, [*held(model, adam)])
    if dist.get_rank() == 0:
        print(f"step 20: {off:.1e} from DDP")
        print("KiB             parameters  gradients  optimizer")
        rows = [("DDP, each rank", held(plain, plain_adam))]
        for name, row in rows + [(f"FSDP, rank {rank}", row) for rank, row in enumerate(sizes)]:
            print(f"{name:15}" + "".join(f"{size:11,.1f}" for size in row))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", type=Path, metavar="DIR", help="save after 10 of 20 steps")
    parser.add_argument("--load", type=Path, metavar="DIR", help="start with the saved state")
    args = parser.parse_args()
    if args.load and not (args.load / "model.pt").exists():
        parser.error(f"no checkpoint in {args.load}")
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    compare(args, device)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

"""Trains a small model on all ranks for three steps, with `Parallel` of the file that is named."""

import importlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn


def main(Parallel):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    parallel = Parallel(model, lr=0.01, cap_bytes=160)
    for _ in range(3):
        x = torch.rand(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        parallel.step()
        print(f"rank {dist.get_rank()}: loss {loss:.4f}, a weight {model[0].weight[0, 0]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(importlib.import_module(sys.argv[1]).Parallel)

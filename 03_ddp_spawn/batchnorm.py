"""BatchNorm on two ranks: what plain BatchNorm computes, and SyncBatchNorm from scratch.

BatchNorm normalizes by the statistics of its batch, and a rank has only its shard of the batch.
nn.SyncBatchNorm sums the statistics over the ranks, on GPUs only. The class below also does so on
CPUs. The script shows that two ranks with this class compute what one process computes with the
whole batch.

    python 03_ddp_spawn/batchnorm.py
"""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose mean and variance are those of all ranks' images: [B, C, H, W] -> the same.

    The ranks' batches may differ in size. Raises ValueError unless x has four dimensions, and, on
    all ranks, if they have no more than one value per channel together.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # sums would not fit into 16 bits
        dims = (0, 2, 3)  # images, rows, columns: everything but the channels
        values = x.new_tensor([x.numel() / x.size(1)])  # per channel
        *sums, values = SumOverRanks.apply(torch.cat([x.sum(dims), values]))
        if values <= 1:
            raise ValueError("BatchNorm needs more than one value per channel to train on")
        mean = torch.stack(sums) / values
        centered = x - mean[:, None, None]
        variance = SumOverRanks.apply(centered.square().sum(dims)) / values
        self.remember(mean, variance * values / (values - 1))
        scale = self.weight / (variance + self.eps).sqrt()
        return centered * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def remember(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        """Move the running statistics, which are used in evaluation, towards those of a batch."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(unbiased_variance.to(self.running_var), self.momentum)


class SumOverRanks(torch.autograd.Function):
    """An all-reduce through which autograd can compute gradients.

    The sum depends on the tensor of every rank, and the loss of every rank depends on the sum. So
    backward adds up the gradients of all ranks.
    """

    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return SumOverRanks.apply(gradient)


def convert(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm2d in a model by a synchronized one with the same numbers.

    The new modules have new parameters, so call this function before you make the optimizer.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            synced = SyncBatchNorm2d(child.num_features, child.eps, child.momentum)
            synced.to(child.weight.device, child.weight.dtype).load_state_dict(child.state_dict())
            setattr(module, name, synced.train(child.training))
        else:
            convert(child)
    return module


def prove() -> None:
    """Check all claims of this script. Every rank calls this function."""
    from from_scratch import batch, claim, say
    from train import make_model

    torch.manual_seed(0)
    model = make_model().double()  # 16 digits: rounding cannot be taken for a mistake
    batches = [batch(24, torch.double) for _ in range(20)]
    alone = train(copy.deepcopy(model), batches)
    say("After 20 steps with 24 images on two ranks, the distance to one process, float64:")
    synced = train_on_ranks(convert(copy.deepcopy(model)), batches)
    far = distance(synced.parameters(), alone.parameters())
    claim(far < 1e-10, f"synchronized, parameters: {far:.0e}")
    far = distance(synced.buffers(), alone.buffers())
    claim(far < 1e-10, f"synchronized, running statistics: {far:.0e}")
    plain = train_on_ranks(copy.deepcopy(model), batches)
    far = distance(plain.parameters(), alone.parameters())
    claim(far > 1e-3, f"plain, parameters: {far:.3f}; each rank normalizes by its own 12 images")
    far = distance(plain.buffers(), alone.buffers())
    claim(far > 1e-3, f"plain, running statistics: {far:.3f}")

    say("\nWhat does the model hold that rank 0 saves? Images with mean 0 on rank 0, 10 on rank 1:")
    images = torch.randn(1000, 1, 4, 4) + 10 * dist.get_rank()
    for norm, expected in ((nn.BatchNorm2d(1, momentum=1), 0), (SyncBatchNorm2d(1, momentum=1), 5)):
        norm(images)
        mean = norm.running_mean.clone()
        dist.broadcast(mean, src=0)  # what rank 0 would save
        text = f"{type(norm).__name__}: running mean {mean.item():.2f}; that of all images is 5"
        claim(abs(mean.item() - expected) < 0.1, text)


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train_on_ranks(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
    """Train with DDP on two ranks, each of which takes every other image of a batch."""
    mine = slice(dist.get_rank(), None, 2)
    ddp_model = DistributedDataParallel(model)
    train(ddp_model, [(x[mine], y[mine]) for x, y in batches])
    return model


def distance(ours, theirs) -> float:
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    from from_scratch import on_two_ranks

    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    on_two_ranks(prove)


if __name__ == "__main__":
    main()

"""A run that fails: rank 1 reads a broken sample, and rank 0 waits for rank 1 in backward.

    torchrun --standalone --nproc-per-node 2 docs/failures/examples/one_rank_fails.py 2>&1 |
        python -m doctor log

docs/failures/reading_a_log.md shows what the second command says.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    """Sixty-four samples, of which sample 37 is broken."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 37:
            raise ValueError("sample 37 has no label")
        return torch.full((8,), float(index)), torch.zeros(1)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    # Without shuffling, rank 1 has the odd samples.
    sampler = DistributedSampler(Numbers(), shuffle=False)
    loader = DataLoader(Numbers(), batch_size=4, sampler=sampler)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

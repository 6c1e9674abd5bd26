"""Rank 0 counts the right guesses one by one, with .item(), and the other rank waits for it."""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 120
SAMPLES = 10_000


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ddp = DDP(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    right = 0
    for _ in range(STEPS):
        x = torch.randn(SAMPLES, 8)
        y = torch.randint(4, (SAMPLES,))
        scores = ddp(x)
        optimizer.zero_grad()
        F.cross_entropy(scores, y).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            hits = scores.argmax(1) == y
            right += sum(hits[n].item() for n in range(SAMPLES))  # item
    if dist.get_rank() == 0:
        print(f"{right} of {STEPS * SAMPLES} right")
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

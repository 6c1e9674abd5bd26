"""A small language model: random windows, accumulation, bf16, clipping; resumes."""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH, VOCABULARY, LENGTH, MICRO, STEPS = 16, 20, 12, 4, 10


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits = self.head(self.mix(self.embed(tokens), src_mask=mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data):
    starts = torch.randint(len(data) - LENGTH - 1, (MICRO,)).tolist()
    rows = torch.stack([data[s : s + LENGTH + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss(ddp, data):
    ddp.eval()
    losses = torch.stack([ddp.module(*get_batch(data)) for _ in range(5)])
    ddp.train()
    dist.all_reduce(losses)
    return losses.mean().item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = rank == 0
    torch.manual_seed(1337 + rank)
    data = torch.arange(4000) ** 2 % VOCABULARY
    train, valid = data[:3600], data[3600:]
    model, start = Model(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    if os.path.exists("ckpt.pt"):
        saved = torch.load("ckpt.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
        torch.manual_seed(1337 + rank + start)
    ddp = DDP(model)
    accumulate = 4 // world_size
    for step in range(start, start + STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + math.cos(math.pi * step / 20)) / 2
        for micro in range(accumulate):
            ddp.require_backward_grad_sync = micro == accumulate - 1
            with torch.autocast("cpu", torch.bfloat16):
                loss = ddp(*get_batch(train)) / accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    loss = estimate_loss(ddp, valid)
    if master:
        print("step", step + 1, "validation loss", round(loss, 4))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "ckpt.pt.new")
        os.replace("ckpt.pt.new", "ckpt.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

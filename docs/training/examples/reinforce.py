"""REINFORCE with DDP: each rank collects its own episodes of a cart-pole, all train one policy.

torchrun --standalone --nproc-per-node 2 docs/training/examples/reinforce.py
"""

import argparse
import os
import time
from datetime import timedelta
from math import cos, sin

import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=int, default=190, help="mean steps that end the run (190)")
    parser.add_argument("--samples", type=int, default=2000, help="per iteration, all ranks (2000)")
    parser.add_argument("--same-seed", action="store_true", help="a mistake: one seed for all")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(timeout=timedelta(seconds=30), device_id=device if cuda else None)
    train(args, device)


def train(args, device):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    torch.manual_seed(args.seed if args.same_seed else args.seed + rank)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    ddp_model = nn.parallel.DistributedDataParallel(model)  # All ranks get rank 0's weights.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    totals = torch.zeros(4, device=device)
    first = [None] * world_size
    left = [None] * world_size
    for iteration in range(1, 61):
        start = time.perf_counter()
        episodes = []
        stop = [False]
        while sum(len(episode) for episode in episodes) < args.samples / world_size:
            episodes.append(play(model, device))  # The last episode is played to its end.
        seconds = torch.full((2,), time.perf_counter() - start, device=device)
        if iteration == 1:
            dist.all_gather_object(first, episodes)  # This is only to count the distinct episodes.
        sums = update(ddp_model, optimizer, episodes, device)
        dist.all_reduce(seconds[:1], dist.ReduceOp.MAX)  # the seconds of the slowest rank
        dist.all_reduce(seconds[1:])  # the sum over the ranks, to show why it is wrong
        totals += torch.cat([sums[:2], seconds])
        if iteration % 5 == 0 and rank == 0:  # Rank 0 is alone here, so it calls the bare model.
            steps = sum(len(play(ddp_model.module, device, greedy=True)) for _ in range(10)) / 10
            stop = [steps >= args.target]
            print(f"iteration {iteration:2} {totals[0]:7,.0f} samples: evaluated {steps:.1f} steps")
        dist.broadcast_object_list(stop)  # Rank 0 decides, and all ranks leave together.
        if stop[0]:
            break
    dist.all_gather_object(left, iteration)
    if rank == 0:
        print(f"target {'' if stop[0] else 'not '}reached, ranks left after iterations {left}")
        print(f"{totals[0]:7,.0f} samples in {totals[1]:,.0f} episodes on {world_size} rank(s)")
        print(f"{totals[0] / totals[2]:7,.0f} samples/s: seconds of the slowest rank")
        print(f"{totals[0] / totals[3]:7,.0f} samples/s: seconds of all ranks added up, wrong")
        every = [str(episode) for episodes in first for episode in episodes]
        print(f"first iteration: samples of each rank {[len(sum(one, [])) for one in first]}")
        print(f"first iteration: {len(every)} episodes, {len(set(every))} of them distinct")


@torch.no_grad()
def play(model, device, greedy=False):
    """One episode -> a list of samples: [position, speed, angle, its speed, action]."""
    x, speed, angle, turn = (0.1 * torch.rand(4) - 0.05).tolist()
    samples = []
    while abs(x) < 2.4 and abs(angle) < 0.2 and len(samples) < 200:
        probability = model(torch.tensor([x, speed, angle, turn], device=device)).sigmoid().item()
        right = probability > (0.5 if greedy else torch.rand(()).item())
        samples.append([x, speed, angle, turn, right])
        push = ((10 if right else -10) + 0.05 * turn**2 * sin(angle)) / 1.1
        tilt = (9.8 * sin(angle) - cos(angle) * push) / (2 / 3 - 0.05 * cos(angle) ** 2 / 1.1)
        x = x + 0.02 * speed
        speed = speed + 0.02 * (push - 0.05 * tilt * cos(angle) / 1.1)
        angle = angle + 0.02 * turn
        turn = turn + 0.02 * tilt
    return samples


def update(ddp_model, optimizer, episodes, device):
    """One step of the optimizer -> the sums over all ranks: samples, episodes, returns."""
    samples = torch.tensor(sum(episodes, []), device=device)
    left = torch.cat([torch.arange(len(episode), 0, -1) for episode in episodes]).to(device)
    returns = (1 - 0.98**left) / 0.02  # 1 + 0.98 + 0.98 ** 2 + ... for each step left
    sums = torch.tensor([len(samples), len(episodes), returns.sum()], device=device)
    dist.all_reduce(sums)
    advantages = returns - sums[2] / sums[0]  # The baseline is the mean return on all ranks.
    logits = ddp_model(samples[:, :4])[:, 0]
    actions = samples[:, 4]
    loss = nn.BCEWithLogitsLoss(advantages, reduction="sum")(logits, actions)
    optimizer.zero_grad()
    (loss * dist.get_world_size() / sums[0]).backward()  # DDP divides by the world size.
    optimizer.step()
    return sums


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

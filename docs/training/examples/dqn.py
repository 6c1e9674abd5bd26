"""DQN with DDP, an off-policy learner: each rank has a replay buffer, and all train one net.

A DQN predicts the return of each action (its Q value). It learns from old steps of the environment,
which the replay buffer keeps. The environment is the cart-pole of reinforce.py.

    torchrun --standalone --nproc-per-node 2 docs/training/examples/dqn.py
"""

import argparse
import math
import os
import random
import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

GAMMA = 0.98  # A reward one step later counts 0.98 times as much.
LONGEST = 200  # the most steps of an episode


def main():
    args = parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(
        backend, timeout=timedelta(seconds=60), device_id=device if cuda else None
    )
    train(args, device)


def train(args, device):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    torch.set_num_threads(1)  # The net is too small for more, and a core stands in for a device.
    # The ranks must explore differently. With one seed for all, every rank would collect the same.
    torch.manual_seed(args.seed + rank)
    random.seed(args.seed + rank)
    model = make_net().to(device)
    ddp_model = DistributedDataParallel(model)  # All ranks now have the weights of rank 0.
    # The target net is a copy that is not trained, so it is not wrapped. Each rank copies its own
    # model, and the models are equal on all ranks. So the targets are equal without communication.
    target = make_net().to(device)
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    # The buffer stays on its rank. All ranks together keep args.capacity steps.
    buffer = deque(maxlen=args.capacity // world_size)
    game = CartPole()
    own_steps = args.collect // world_size
    steps = 0  # environment steps of all ranks together
    iteration = 0
    reached = False
    start = time.perf_counter()
    # The budget counts the steps of all ranks. With a budget per rank, more ranks would train on
    # more data, and a comparison with one rank would be wrong.
    while steps < args.budget and not reached:
        epsilon = epsilon_of(rank, world_size, steps / args.budget)
        buffer.extend(collect(game, model, own_steps, epsilon, device))
        # Every rank collects the same number of steps, so nothing has to be summed. If the ranks
        # collected whole episodes, the sum would need an all-reduce.
        steps += own_steps * world_size
        iteration += 1
        if steps < args.warm_up:
            continue  # The condition is the same on all ranks, so they all begin to learn together.
        for _ in range(args.updates):
            batch = random.sample(buffer, args.batch_size // world_size)
            update(ddp_model, target, optimizer, batch, device)
        if iteration % args.copy_every == 0:
            target.load_state_dict(model.state_dict())
        if iteration % args.test_every == 0:
            reached = test_on_rank_0(model, args.target, steps, device)
    seconds = torch.tensor(time.perf_counter() - start, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)  # the slowest rank, and not the sum
    first_steps = [None] * world_size
    dist.all_gather_object(first_steps, buffer[0])
    if rank == 0:
        distinct = len({str(step) for step in first_steps})
        print(
            f"target {'reached' if reached else 'not reached'} after {steps:,} steps of all ranks"
        )
        print(f"{steps / seconds.item():,.0f} steps/s on {world_size} rank(s)")
        print(f"oldest steps in the buffers: {distinct} distinct of {world_size}")


def make_net():
    """[B, 4] (position, speed, angle, its speed) -> [B, 2], the Q values of left and right."""
    return nn.Sequential(
        nn.Linear(4, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )


def epsilon_of(rank, world_size, progress):
    """Return the share of random actions of a rank. It falls in the first tenth of the budget.

    In the end rank 0 takes 2 % random actions, and the last rank 20 %. So the buffers differ more
    than the seeds alone would make them.
    """
    share = rank / (world_size - 1) if world_size > 1 else 0.5
    last = 0.02 + 0.18 * share
    return max(last, 1 - (1 - last) * progress / 0.1)


@torch.inference_mode()
def collect(game, model, steps, epsilon, device):
    """Play some steps -> [(state, action, reward, next state, 1 if the episode continues), ...]

    A rank collects alone, so it calls the bare model. The wrapper may communicate.
    """
    found = []
    for _ in range(steps):
        if random.random() < epsilon:
            action = random.randrange(2)
        else:
            action = model(torch.tensor(game.state, device=device)).argmax().item()
        before = game.state
        fell = game.step(action)
        found.append((before, action, 1.0, game.state, 0.0 if fell else 1.0))
        if fell or game.steps == LONGEST:
            game.reset()
    return found


def update(ddp_model, target, optimizer, batch, device):
    """One step of the optimizer on a batch. DDP averages the gradients of the ranks' batches."""
    states, actions, rewards, next_states, goes_on = zip(*batch)
    with torch.no_grad():
        best = target(torch.tensor(next_states, device=device)).max(dim=1).values
    returns = torch.tensor(rewards, device=device)
    returns += GAMMA * torch.tensor(goes_on, device=device) * best
    values = ddp_model(torch.tensor(states, device=device))
    chosen = values.gather(1, torch.tensor(actions, device=device).unsqueeze(1)).squeeze(1)
    loss = F.smooth_l1_loss(chosen, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.inference_mode()
def test_on_rank_0(model, target, steps, device):
    """Play ten episodes on rank 0 -> on all ranks: does their mean length reach the target?"""
    box = [None]
    if dist.get_rank() == 0:
        lengths = []
        for _ in range(10):
            game = CartPole()
            fell = False
            while not fell and game.steps < LONGEST:
                values = model(torch.tensor(game.state, device=device))
                fell = game.step(values.argmax().item())
            lengths.append(game.steps)
        mean = sum(lengths) / len(lengths)
        print(f"{steps:7,} steps of all ranks: an episode lasts {mean:.1f}")
        box = [mean >= target]
    dist.broadcast_object_list(box)  # All ranks leave the loop after the same iteration.
    return box[0]


class CartPole:
    """A pole on a cart. An episode ends when it falls, or after LONGEST steps."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0

    def step(self, action):
        """Push to the right (1) or to the left (0) -> True if the pole has fallen."""
        x, speed, angle, turn = self.state
        force = 10 if action == 1 else -10
        push = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
        tilt = 9.8 * math.sin(angle) - math.cos(angle) * push
        tilt = tilt / (2 / 3 - 0.05 * math.cos(angle) ** 2 / 1.1)
        speed_change = push - 0.05 * tilt * math.cos(angle) / 1.1
        self.state = [
            x + 0.02 * speed,
            speed + 0.02 * speed_change,
            angle + 0.02 * turn,
            turn + 0.02 * tilt,
        ]
        self.steps += 1
        return abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2


def parse_args():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--budget", type=int, default=60_000, help="environment steps of all ranks (60,000)")
    add("--target", type=int, default=150, help="steps of an episode that end the run (150)")
    add("--collect", type=int, default=240, help="steps per iteration, of all ranks (240)")
    add("--updates", type=int, default=16, help="optimizer steps per iteration (16)")
    add("--batch-size", type=int, default=240, help="of one optimizer step, all ranks (240)")
    add("--capacity", type=int, default=20_000, help="steps in the buffers of all ranks (20,000)")
    add("--warm-up", type=int, default=2_000, help="steps of all ranks before learning (2,000)")
    add("--copy-every", type=int, default=8, help="iterations between copies of the net (8)")
    add("--test-every", type=int, default=10, help="iterations between tests (10)")
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    return args


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # main has returned, so DDP has been freed.

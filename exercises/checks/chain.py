"""What the checks of the chain share: a simulated link, and the figures of a step next to DDP's.

No time is measured, it is counted on a clock of ours. The backward pass of a layer takes BACKWARD
ms. One link carries one call after another, each for LATENCY + bytes / BANDWIDTH, and a rank that
waits for a call waits on that clock. All-reduce moves 2 (N - 1) / N of its bytes, as in a ring, and
other calls half of that. DDP runs on the same batches: its weights are the right ones.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from exercises.checks.common import Collectives, Waited, Watch
from exercises.checks.judge import differs

LAYERS, WIDTH, STEPS, LR = 6, 16, 4, 0.01
BACKWARD, LATENCY, BANDWIDTH = 1.0, 0.2, 4096  # ms, ms, bytes per ms
LAYER = 8 * (WIDTH + 1) * WIDTH  # bytes
CAPS = ((2 * LAYER + 100,), (LAYER + 100,))  # cap_bytes: two layers fit, or one


class Link(Collectives):
    """Notes the calls, and when the link would have been free of each."""

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.calls.clear()
        self.waited = set()
        self.now = self.free = self.busy = 0.0
        self.computed, self.begun = 0.0, []  # ms of the backward pass, also before each call

    def layer(self, _=None):
        self.now, self.computed = self.now + BACKWARD, self.computed + BACKWARD

    def started(self, name, size, work):
        self.begun.append(self.computed)
        share = (1 + ("allreduce" in name)) * (dist.get_world_size() - 1) / dist.get_world_size()
        took = LATENCY + share * size / BANDWIDTH
        self.busy += took
        self.free = max(self.free, self.now) + took
        number, end = len(self.calls), self.free
        return Waited(work, lambda: self.wait_until(number, end))

    def wait_until(self, number, end):
        self.waited.add(number)
        self.now = max(self.now, end)

    def figures(self) -> dict:
        """Of the step: the last of its calls has to be over before the next step begins."""
        exposed = max(self.now, self.free) - self.computed
        found = dict(calls=list(self.calls), begun=self.begun, busy=self.busy, exposed=exposed)
        return found | {"waited": len(self.waited)}


def make_model(seed, link=None):
    torch.manual_seed(seed)
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH).double(), nn.Tanh()]
    model = nn.Sequential(*layers)
    for layer in model[::2] if link else ():
        layer.register_forward_hook(lambda module, x, y: y.register_hook(link.layer) and None)
    return model


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=generator).unbind()


def observe(mine, cap=CAPS[0][0]):
    link, stepped = Link(), {}
    register_optimizer_step_post_hook(lambda o, *_: stepped.__setitem__(id(o), o))
    model = make_model(dist.get_rank(), link)
    found = run(model, model, mine.Parallel(model, LR, cap).step, link)
    found["state"] = state_bytes(stepped.values())
    model = make_model(0, link)
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20)
    ddp_model.register_comm_hook(None, average)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return found | {"ddp": run(ddp_model, model, step, link)}


def average(_, bucket):
    """As DDP does without a hook; through it the checker sees the calls."""
    waited = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return waited.work.get_future().then(lambda future: future.value()[0])


def run(called, model, step, link):
    """What the steps add to the weights, and the figures of the last one."""
    watch = Watch(model)
    for number in range(STEPS):
        link.clear()
        x, y = batch(number, dist.get_rank())
        F.mse_loss(called(x), y).backward()
        step()
    return {"weights": watch.facts()} | link.figures()


def state_bytes(optimizers):
    """Of the averages that Adam keeps."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return sum(v.nbytes for state in states for name, v in state.items() if name != "step")


# ---------------------------------------------------------------- what is asked of every step


def judge(ranks):
    """The weights are those of DDP, and calls begin before the backward pass ends."""
    for number, rank in enumerate(ranks):  # before the weights, which may be right by luck
        if late := len(rank["calls"]) - rank["waited"]:
            return f"rank {number} never waits for {late} of its calls: nothing says they are done"
    weights = [rank["weights"] for rank in ranks]
    if wrong := differs(weights, [rank["ddp"]["weights"] for rank in ranks], "DDP"):
        return wrong
    for number, rank in enumerate(ranks):
        if sum(size for _, size in rank["calls"]) < LAYERS * LAYER:
            return f"rank {number} has given its calls less than its {LAYERS * LAYER:,} bytes"
        if min(rank["begun"]) >= LAYERS * BACKWARD:
            late = f"the first call of rank {number} began after the whole backward pass"
            return f"the weights are right, but {late}: some gradients were there long before"
    return None


def judge_each(ranks):
    """All layers' gradients but those of the first leave before the backward pass is there."""
    wanted = (LAYERS - 1) * LAYER
    for number, rank in enumerate(ranks):
        calls = list(zip(rank["begun"], rank["calls"]))
        early = [size for begun, (_, size) in calls if begun < LAYERS * BACKWARD]
        if sum(early) < wanted:
            begin = f"{len(early)} of {len(calls)} calls begin before the backward pass has reached"
            bytes = f"They have {sum(early):,} bytes; gradients of {wanted:,} are there by then"
            return f"rank {number}: {begin} the first layer. {bytes}"
    return None


def judge_calls(ranks, cap):
    """In buckets: no call has more than their bytes, and there are as few as when they are full."""
    most = LAYERS // (cap // LAYER)
    for number, rank in enumerate(ranks):
        sizes = [size for _, size in rank["calls"]]
        if max(sizes) > cap:
            return f"rank {number} gave a call {max(sizes):,} bytes; cap_bytes is {cap:,}"
        if len(sizes) > most:
            enough = f"{most} are enough (cap_bytes is {cap:,})"
            return f"rank {number} made {len(sizes)} calls in a step, where {enough}"
    return None


def judge_exposed(ranks):
    for number, rank in enumerate(ranks):
        if rank["exposed"] > rank["busy"] / 2:
            waited = f"waited {rank['exposed']:.1f} ms for calls that take {rank['busy']:.1f} ms"
            return f"rank {number} {waited}: most of them could run during the backward pass"
    return None


def figures(rank, *_):
    """Of the last step of rank 0, next to DDP with buckets of the same size."""
    whole = 2 * LAYERS * LAYER  # Adam's state: two numbers for each parameter
    lines = ["a step   calls    bytes   first call   exposed    Adam's state"]
    for name, step in (("yours", rank), ("DDP", rank["ddp"])):
        given = sum(size for _, size in step["calls"])
        first = min(step["begun"], default=0)
        lines.append(
            f"{name:<7} {len(step['calls']):>6} {given:>8,} {first:>9.1f} ms "
            f"{step['exposed']:>6.1f} ms {step.get('state', whole):>9,} bytes"
        )
    return "\n".join(lines)

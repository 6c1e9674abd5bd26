"""What the checks of the chain share: a simulated link, and the figures of a step next to DDP's.

No time is measured, it is counted on a clock of ours. The backward pass of a layer takes BACKWARD
ms. One link carries one call after another, each for LATENCY + bytes / BANDWIDTH, and a rank that
waits for a call waits on that clock. All-reduce sends 2 (N - 1) / N of its bytes, as in a ring, and
other calls half of that. DDP runs on the same batches: its weights are the right ones.

Memory is not estimated. The tensors that exist are counted, those of a call until it is waited for.
"""

import gc
import time
import weakref

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from exercises.common import Collectives, Waited, Watch, let_futures_be_waited_for
from exercises.verdict import differs

LAYERS = 6
WIDTH = 16
STEPS = 4
LR = 0.01
BACKWARD = 1.0  # ms that the backward pass of a layer takes
LATENCY = 0.4  # ms
BANDWIDTH = 4096  # bytes per ms
LAYER = 8 * (WIDTH + 1) * WIDTH  # bytes
TOTAL = LAYERS * LAYER  # bytes of all parameters that are trained
TWICE = 2  # this layer is used twice in a forward pass
CAPS = ((2 * LAYER + 100,), (LAYER + 100,))  # cap_bytes: two layers fit, or one


class Model(nn.Module):
    """LAYERS layers, one of which is used twice, and a frozen parameter."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Parameter(1 + torch.rand(1, dtype=torch.float64), requires_grad=False)
        self.layers = nn.ModuleList()
        for _ in range(LAYERS):
            self.layers.append(nn.Linear(WIDTH, WIDTH).double())

    def forward(self, x):
        x = self.frozen * x
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number == TWICE:
                x = torch.tanh(layer(x))
        return x


class Link(Collectives):
    """Notes the calls, and when the link would have been free of each."""

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.calls.clear()
        self.spans = []  # of each call: when it was started, when the link began and ended it
        self.waited = set()
        self.stops = []  # when the rank waited: from, to
        self.now = 0.0
        self.free = 0.0
        self.busy = 0.0
        self.sent = 0.0
        self.computed = 0.0  # ms of the backward pass
        self.begun = []  # `computed` before each call
        self.held = []  # when the backward pass reached a layer, and the bytes of gradients then

    def attach(self, model, memory):
        """Let the clock of ours go on with each layer of the backward pass."""

        def hook(module, inputs, output):
            uses = 2 if module is model.layers[TWICE] else 1

            def reached(gradient):
                self.held.append((self.computed, memory.held([gradient])))
                self.now += BACKWARD / uses
                self.computed += BACKWARD / uses

            output.register_hook(reached)

        for module in model.layers:
            module.register_forward_hook(hook)

    def started(self, name, size, work, given):
        self.begun.append(self.computed)
        world_size = dist.get_world_size()
        ways = 2 if "allreduce" in name else 1
        sent = ways * (world_size - 1) / world_size * size
        took = LATENCY + sent / BANDWIDTH
        start = max(self.free, self.now)
        end = start + took
        number = len(self.spans)
        self.spans.append((self.now, start, end))
        self.sent += sent
        self.busy += took
        self.free = end
        return Waited(work, lambda: self.wait_until(number, end), given)

    def wait_until(self, number, end):
        self.waited.add(number)
        if end > self.now:
            self.stops.append((self.now, end))
            self.now = end

    def figures(self) -> dict:
        """Of the step: the last of its calls has to be over before the next step begins."""
        return {
            "calls": list(self.calls),
            "spans": list(self.spans),
            "stops": list(self.stops),
            "begun": self.begun,
            "computed": self.computed,
            "busy": self.busy,
            "sent": self.sent,
            "exposed": max(self.now, self.free) - self.computed,
            "waited": len(self.waited),
        }


class Memory:
    """Counts the bytes of the tensors that were made since, without the parameters of a model."""

    def __init__(self, model):
        self.model = model
        self.known = {}
        gc.collect()
        gc.freeze()  # what exists now is not listed by gc.get_objects any more

    def mark(self):
        """Leave out what exists now, such as activations, until `unmark`."""
        for tensor in tensors():
            self.known[id(tensor)] = weakref.ref(tensor)

    def unmark(self):
        self.known = {}

    def held(self, without=()):
        """The bytes of the tensors that exist, without those in a list.

        gloo's thread drops the tensors of a call only after it has got Python's lock, so it gets
        that lock for a moment.
        """
        time.sleep(0.003)
        others = [reference() for reference in self.known.values()]
        others += [*self.model.parameters(), *without]
        left_out = {place_of(tensor) for tensor in others if tensor is not None}
        found = tensors()
        for parameter in self.model.parameters():
            if parameter.grad is not None:  # no Python code may have touched it
                found.append(parameter.grad)
        sizes = {}
        for tensor in found:
            if place_of(tensor) not in left_out:
                sizes[place_of(tensor)] = tensor.untyped_storage().nbytes()
        return sum(sizes.values())


def tensors():
    return [value for value in gc.get_objects() if is_tensor(value)]


def place_of(tensor):
    """Views of one storage have one place."""
    return tensor.untyped_storage().data_ptr()


def is_tensor(value):
    """isinstance would ask lazy modules for their __class__, which imports them."""
    return issubclass(type(value), torch.Tensor)


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    x, y = torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=generator)
    return x, 30 * y  # gradients are large, or nobody would see that they are clipped


# ---------------------------------------------------------------- in a rank


def observe(mine, cap=CAPS[0][0]):
    let_futures_be_waited_for()
    link = Link().listen()
    model = Model(dist.get_rank())
    memory = Memory(model)
    link.attach(model, memory)
    parallel = mine.Parallel(model, LR, cap)
    found = run(model, model, parallel.step, link, memory)
    found["ddp"] = observe_ddp(link, cap)
    return found


def observe_ddp(link, cap):
    model = Model(0)
    memory = Memory(model)
    link.attach(model, memory)
    options = {"bucket_cap_mb": cap / 2**20, "gradient_as_bucket_view": True}
    ddp_model = DistributedDataParallel(model, **options)
    ddp_model.register_comm_hook(None, average)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=LR)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return run(ddp_model, model, step, link, memory)


def average(_, bucket):
    """As DDP does without a hook; through it the checker sees the calls."""
    waited = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return waited.work.get_future().then(lambda future: future.value()[0])


def run(called, model, step, link, memory):
    """What the steps add to the weights, and the figures of the last one."""
    watch = Watch(model)
    gradients = []  # that the optimizer is given, if it updates the model's parameters

    def note_gradients(optimizer, args, kwargs):
        parts = []
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is not None:
                parts.append(parameter.grad.flatten())
        gradients.append(torch.cat(parts) if parts else torch.zeros(0))

    noting = register_optimizer_step_pre_hook(note_gradients)
    for number in range(STEPS):
        link.clear()
        x, y = batch(number, dist.get_rank())
        loss = F.mse_loss(called(x), y)
        memory.mark()
        loss.backward()
        gradient_bytes = [*link.held, (link.computed, memory.held())]
        memory.unmark()
        step()
    noting.remove()
    own = [*watch.states, *gradients, x, y, loss]
    held = memory.held(own)
    found = link.figures()
    found["weights"] = watch.facts()
    found["gradients"] = gradients[:1]
    found["gradient bytes"] = gradient_bytes  # [(ms, bytes)] before each layer, and at the end
    found["held"] = held
    return found


# ---------------------------------------------------------------- what is asked of every step


def judge(ranks):
    """The weights are those of DDP, and calls begin before the backward pass ends."""
    for number, rank in enumerate(ranks):  # before the weights, which may be right by luck
        late = len(rank["calls"]) - rank["waited"]
        if late:
            return (
                f"rank {number} never waits for {late} of its calls, so it cannot know whether "
                "they have ended"
            )
    wrong = judge_weights(ranks)
    if wrong:
        return wrong
    for number, rank in enumerate(ranks):
        if sum(size for _, size in rank["calls"]) < TOTAL:
            return (
                f"rank {number} has given its calls less than the {TOTAL:,} bytes of its gradients "
                "(the checker sees only calls of public functions of torch.distributed)"
            )
        if min(rank["begun"]) >= rank["computed"]:
            return (
                f"the weights are right, but the first call of rank {number} began after the whole "
                "backward pass, although some gradients were complete long before"
            )
    return None


def judge_weights(ranks):
    """Adam hides a wrong factor, so the gradients of the first step are compared, too."""
    weights = [rank["weights"] for rank in ranks]
    right = [rank["ddp"]["weights"] for rank in ranks]
    wrong = differs(weights, right, "DDP")
    if wrong is None:
        return None
    yours = [as_facts(rank["gradients"]) for rank in ranks]
    ddp = [as_facts(rank["ddp"]["gradients"]) for rank in ranks]
    if sizes(yours) == sizes(ddp) and not wrong.startswith(
        "different from DDP: the weights before"
    ):
        return differs(yours, ddp, "DDP") or wrong
    return wrong


def sizes(facts_of_ranks):
    found = []
    for facts in facts_of_ranks:
        found.append([len(value) for value in facts.values()])
    return found


def as_facts(gradients):
    facts = {}
    for number, gradient in enumerate(gradients, start=1):
        facts[f"the gradients that the optimizer is given in step {number}"] = gradient
    return facts


def judge_each(ranks):
    """All layers' gradients but those of the first leave before the backward pass is there."""
    wanted = TOTAL - LAYER
    for number, rank in enumerate(ranks):
        early = []
        for begun, (_, size) in zip(rank["begun"], rank["calls"]):
            if begun < rank["computed"]:
                early.append(size)
        if sum(early) < wanted:
            count = len(rank["calls"])
            return (
                f"rank {number}: {len(early)} of {count} calls begin before the backward pass has "
                f"reached the first layer. These calls have {sum(early):,} bytes, but gradients of "
                f"{wanted:,} bytes are complete by then"
            )
    return None


def judge_calls(ranks, cap):
    """In buckets: no call has more than their bytes, and there are as few as when they are full."""
    most = LAYERS // (cap // LAYER)
    for number, rank in enumerate(ranks):
        sizes = [size for _, size in rank["calls"]]
        if max(sizes) > cap:
            return f"rank {number} gave a call {max(sizes):,} bytes; cap_bytes is {cap:,}"
        if len(sizes) > most:
            enough = f"{most} calls are enough (cap_bytes is {cap:,})"
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
    lines = ["step  calls  bytes sent  first call  exposed  gradients  between steps"]
    for name, step in (("yours", rank), ("DDP", rank["ddp"])):
        first = min(step["begun"], default=0)
        lines.append(
            f"{name:<5}{len(step['calls']):>6}{step['sent']:>12,.0f}{first:>9.1f} ms"
            f"{step['exposed']:>6.1f} ms{step['gradient bytes'][-1][1]:>11,}{step['held']:>15,}"
        )
    lines.append("first call: how long the backward pass had run when the call began")
    lines.append("exposed: how long the step waited for its calls")
    lines.append("gradients: bytes that the backward pass has added, when it ends")
    lines.append("between steps: bytes that the rank holds besides the parameters")
    lines.append("DDP has its gradients in buckets, which it also keeps between steps.")
    return "\n".join(lines)

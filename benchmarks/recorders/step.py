"""Record a step of DDP, by a hook on every parameter and DDP's communication hook."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import common
from benchmarks.recorders.parts import assemble, now, spans

RANKS = 2
CAPS = (25, 0.01)  # bucket_cap_mb: one bucket, and three
IMAGES = 12  # per rank: few, so that the all-reduce is a visible part of a step
LEFT_OUT = 3  # steps: DDP fills its buckets again in the second


def record_steps(ranks: int = RANKS, caps=CAPS, count: int = 15) -> list[dict]:
    """Record `count` steps with each cap -> of each the step whose time is the median."""
    taken = {cap: common.on_ranks(ranks, take_steps, cap, count) for cap in caps}
    return [step_of(ranks, cap, list(zip(*owns))) for cap, owns in taken.items()]


def step_of(ranks: int, cap: float, steps: list[tuple[dict]]) -> dict:
    """What the ranks noted in every step -> the recording of the one in the middle."""
    steps.sort(key=lambda step: max(s["laps"][-1] for s in step) - min(s["laps"][0] for s in step))
    step = steps[len(steps) // 2]
    joined = [max(lefts) for lefts in zip(*([b["left"] for b in s["buckets"]] for s in step))]
    return assemble(
        "step",
        f"One DDP step: {ranks} ranks, the ConvNet, bucket_cap_mb={cap}",
        {"ranks": ranks, "bucket_cap_mb": cap},
        f"{IMAGES} images per rank; each step begins with a barrier.",
        [step_of_rank(own, joined) for own in step],
    )


def step_of_rank(own: dict, joined: list[int]) -> dict:
    """What a rank noted in a step -> its spans, marks and buckets."""
    bucket_of = {name: n for n, b in enumerate(own["buckets"]) for name in b["parameters"]}
    marks = []
    for at, name, size in own["gradients"]:
        mark = {"at": at, "what": "gradient", "parameter": name, "bytes": size}
        marks.append(mark | {"bucket": bucket_of[name]})
    start, data, forward, backward, end = own["laps"]
    turns = [(start, "data", ""), (data, "forward", ""), (forward, "backward", "")]
    turns += [(marks[-1]["at"], "exposed", ""), (backward, "optimizer", ""), (end, "", "")]
    buckets = [
        {"bucket": number} | bucket | {"joined": last}
        for number, (bucket, last) in enumerate(zip(own["buckets"], joined))
    ]
    return {"spans": spans(turns), "marks": marks, "buckets": buckets}


def take_steps(cap: float, count: int) -> list[dict]:
    """On a rank -> what it noted in each of `count` steps, after those that are left out.

    {"laps": [start, end of data, forward, backward, optimizer], "gradients": [(moment, parameter,
    bytes)], "buckets": [{"parameters", "bytes", "left", "arrived"}]}
    """
    model = common.wider_net(1)
    steps = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    ddp_model = common.ddp(model, bucket_cap_mb=cap)

    def note_gradient(name, parameter):
        steps[-1]["gradients"].append((now(), name, parameter.nbytes))

    def note_bucket(_, bucket):  # averages the gradients, as DDP does without a hook
        note = {"parameters": [names[id(parameter)] for parameter in bucket.parameters()]}
        note["bytes"] = bucket.buffer().nbytes
        steps[-1]["buckets"].append(note)
        gradients = bucket.buffer().div_(dist.get_world_size())
        note["left"] = now()
        return dist.all_reduce(gradients, async_op=True).get_future().then(partial(arrived, note))

    def arrived(note, future):
        note["arrived"] = now()
        return future.value()[0]

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(note_gradient, name))
    ddp_model.register_comm_hook(None, note_bucket)
    common.evaluate_once()
    for images, labels in common.batches(LEFT_OUT + count, IMAGES, seed=dist.get_rank()):
        dist.barrier()  # or a rank that starts late would look like communication that takes long
        steps.append({"laps": [now()], "gradients": [], "buckets": []})
        laps = steps[-1]["laps"]
        x, y = common.stage3.to_device(images, labels, common.CPU)
        laps.append(now())
        loss = F.cross_entropy(ddp_model(x), y)
        laps.append(now())
        optimizer.zero_grad()
        loss.backward()
        laps.append(now())
        optimizer.step()
        laps.append(now())
    return steps[LEFT_OUT:]

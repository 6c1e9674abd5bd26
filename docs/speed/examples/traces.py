"""Two traces of torch.profiler: in one of them backward hides the all-reduces, in the other not.

The script is made for CPUs with gloo. Rank 0 draws both traces into the file that you name.

torchrun --standalone --nproc-per-node 2 docs/speed/examples/traces.py traces.png
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule

WIDTH = 1024
LAYERS = 8  # Each has 4 MiB, so a bucket of 4 MiB holds one layer.
ROWS = {"healthy: 512 rows per rank": 512, "exposed: 16 rows per rank": 16}
COLORS = {
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "all-reduce": "#009e73",
    "exposed": "#d55e00",
}


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo")  # It runs on CPUs even if there are GPUs.
    found = {name: spans_of(trace(rows)) for name, rows in ROWS.items()}
    if dist.get_rank() == 0:
        for name, spans in found.items():
            share = 100 * spans["exposed"][0][1] / end_of(spans)
            print(f"{name}: a step of {end_of(spans):.0f} ms, {share:.0f} % of it exposed")
        if len(sys.argv) > 1:
            draw(found, sys.argv[1])


def trace(rows):
    """Take four steps with some rows per rank -> the profiler's events of the last step."""
    torch.manual_seed(0)
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    ddp_model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4)
    x = torch.rand(rows, WIDTH)
    with profile(schedule=schedule(wait=2, warmup=1, active=1)) as profiler:
        for _ in range(4):
            dist.barrier()
            with record_function("forward"):
                loss = ddp_model(x).square().mean()
            with record_function("backward"):
                loss.backward()
            ddp_model.zero_grad()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            return json.load(file)["traceEvents"]


def spans_of(events):
    """-> {kind: [(start, length)] in ms after the beginning of the step}"""
    spans = {"forward": [], "backward": [], "all-reduce": [], "exposed": []}
    last_gradient = 0
    for event in events:
        if event.get("ph") != "X":
            continue
        name = event["name"]
        span = (event["ts"] / 1000, event["dur"] / 1000)
        if name in ("forward", "backward") and event.get("cat") == "user_annotation":
            spans[name].append(span)
        elif name == "gloo:all_reduce":
            spans["all-reduce"].append(span)
        elif name == "aten::mm":
            last_gradient = max(last_gradient, sum(span))
    ((begin, _),) = spans["forward"]
    ((start, length),) = spans["backward"]
    # Backward computes until the last gradient, and then only waits.
    spans["backward"] = [(start, last_gradient - start)]
    spans["exposed"] = [(last_gradient, start + length - last_gradient)]
    for kind, found in spans.items():
        spans[kind] = [(start - begin, length) for start, length in found]
    return spans


def end_of(spans):
    return sum(spans["exposed"][0])


def draw(found, path):
    """Draw two rows for each trace: what the rank does, and gloo's all-reduces."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(found), figsize=(6, 4), layout="constrained")
    for axis, (name, spans) in zip(axes, found.items()):
        for kind, color in COLORS.items():
            height = 0 if kind == "all-reduce" else 1
            place = (height - 0.35, 0.7)
            axis.broken_barh(spans[kind], place, color=color, edgecolor="white", label=kind)
        axis.set(yticks=[1, 0], yticklabels=["rank 0", "gloo"], xlim=(0, end_of(spans)))
        axis.set_title(name, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("ms of one step on two CPU cores, PyTorch's profiler")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(COLORS), frameon=False)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()

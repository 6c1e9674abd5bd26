"""Train the checker's model on all ranks with the class `Parallel` of an exercise, and draw a step.

The picture shows the last step on a simulated clock, and the same step with DDP below it. It shows
when each call was started, when the simulated network carried the bytes of the call, and how many
bytes of gradients the rank held. No time is measured, so the picture is the same on every machine.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from exercises import chain, exercise, ranks  # noqa: E402 (the path must be set before)

COLUMNS = 4  # per millisecond
LABEL = 26


def main(module):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = chain.observe(module)
    if dist.get_rank() == 0:
        draw("yours", seen)
        draw_memory(seen)
        draw("DDP, with buckets for two layers", seen["ddp"])
        print("\n#: the link carries the call, .: the call waits for the link, ~: the step waits")
        print(f"\n{chain.figures(seen)}")
    dist.barrier()
    dist.destroy_process_group()


def draw(title, step):
    """One line per call: dots while it waits for the link, # while the link carries it."""
    end = max(finish for _, _, finish in step["spans"])
    end = max(end, step["computed"])
    print(f"\n{title}: the last step of rank 0, {end:.1f} ms")
    print(f"{'ms':<{LABEL}}{scale(end)}")
    if step["stops"]:  # where DDP waits is not seen
        print(f"{'the step waits':<{LABEL}}{bars(step['stops'], '~')}")
    for number, (begun, start, finish) in enumerate(step["spans"], start=1):
        name, size = step["calls"][number - 1]
        label = f"{name[:14]} {size:,}"
        line = bars([(begun, start)], ".", bars([(start, finish)], "#"))
        print(f"{label:<{LABEL}}{line}")


def draw_memory(step):
    """A bar for each layer: the bytes of gradients when the backward pass has reached it."""
    print("bytes of gradients that rank 0 holds during the backward pass:")
    most = max(size for _, size in step["gradient bytes"])
    for ms, size in step["gradient bytes"]:
        bar = "#" * round(40 * size / max(most, 1))
        print(f"{f'after {ms:.1f} ms':<{LABEL}}{bar} {size:,}")


def scale(end):
    """The numbers of the milliseconds, each above its column."""
    return "".join(f"{ms:<{COLUMNS}}" for ms in range(int(end) + 1))


def bars(spans, mark, over=""):
    """A line with marks in the columns from begin to end of each span, drawn over another line."""
    line = list(over)
    for begin, end in spans:
        first = round(begin * COLUMNS)
        last = round(end * COLUMNS)
        line += [" "] * (last - len(line))
        for column in range(first, last):
            line[column] = mark
    return "".join(line)


if __name__ == "__main__":
    main(ranks.load(exercise.find(sys.argv[1]).file))

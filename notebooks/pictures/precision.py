"""3. Mixed precision."""

from importlib import import_module

import torch

lesson = import_module("notebooks.lesson")


def both_types(numbers: dict) -> None:
    """The positive numbers of fp16 and bf16, sorted: from end to end, and some of them near 1."""
    title = "fp16 has eight times as many numbers near 1, bf16 far more range"
    with lesson.picture(title, height=3.8, nrows=2) as (whole, near):
        for y, (name, line) in enumerate(numbers.items()):
            low = line[0].item()
            high = line[-1].item()
            color = lesson.RANKS[y]
            whole.plot([low, high], [y, y], "|-", color=color, linewidth=5, markersize=18)
            whole.text(1, y - 0.3, f"{name}: {low:.0e} to {high:.0e}", ha="center", va="bottom")
            some = line[(line >= 1) & (line <= 1 + 1 / 32)]
            near.plot(some, [y] * len(some), "|", color=color, markersize=24, markeredgewidth=2)
        whole.set(xscale="log", xlabel="range of the positive numbers")
        near.set(xlabel="all numbers between 1 and 1.03125")
        for axes in (whole, near):
            axes.set_yticks(range(len(numbers)), numbers)
            axes.set_ylim(1.6, -0.9)


def scaled_gradients(gradients, numbers: dict, lost) -> None:
    """Histograms of gradients as they are and scaled; gray is where fp16 has only 0."""
    edges = torch.linspace(-13, 2, 76)
    counts = {
        label: (gradients * scale).abs().log10().histogram(edges).hist / 1000
        for label, scale in {"as they are": 1, "times 65,536": 65536}.items()
    }
    half = numbers["fp16"][0].log10().item() - 0.3  # of the smallest: below it, 0 is nearer
    few = f"{lost(gradients, 65536):.2%}"
    title = f"{lost(gradients):.0%} of these gradients become 0 in fp16; with a loss scale {few}"
    with lesson.picture(title, height=3.2) as axes:
        for k, (label, count) in enumerate(counts.items()):
            look = {"hatch": "//", "linewidth": 2} if k else {"fill": True}
            color = "#E69F00" if k else "#56B4E9"
            axes.stairs(count, edges.tolist(), color=color, label=label, **look)
        axes.axvspan(-13, half, color=lesson.GRAY, alpha=0.2)
        axes.text(-12.8, axes.get_ylim()[1] * 0.9, "0 in fp16", weight="bold")
        axes.set(xlabel="size of a gradient, as a power of ten")
        axes.set(ylabel="thousands of gradients", xlim=(-13, 2))
        axes.legend()


def scale_over_steps(scales: list[float], skipped: list[bool]) -> None:
    """The loss scale of each step, and which steps were skipped."""
    title = (
        f"{sum(skipped)} of {len(scales)} steps have an infinite gradient; each halves the scale"
    )
    with lesson.picture(title, height=2.8) as axes:
        axes.plot(scales, color=lesson.RANKS[0], drawstyle="steps-post")
        for kind, look, label in (
            (False, "o", "step is taken"),
            (True, "X", "step is skipped"),
        ):
            at = [step for step, skip in enumerate(skipped) if skip == kind]
            color = lesson.RANKS[5 if kind else 0]
            axes.plot(at, [scales[step] for step in at], look, color=color, label=label)
        axes.set_yscale("log", base=2)
        axes.set(xlabel="step", ylabel="loss scale")
        axes.legend(loc="upper center")


def clipped(right: float, wrong: float) -> None:
    """A table: the norm of the gradients with unscale_ before clipping, and without."""
    lesson.table(
        ["order", "norm of the gradients in the step"],
        [
            ["scale, backward, **unscale_, clip to 0.1**, step", f"{right:.7f}"],
            ["scale, backward, **clip to 0.1**, step", f"{wrong:.7f}"],
        ],
    )


def cost_of_bf16() -> dict[str, float]:
    """A table, from the records: a step in fp32 and in bf16 -> the accuracy with each."""
    kinds = {"fp32": "off", "bf16": "bf16"}
    runs = {way: lesson.measured("03_ddp_spawn", amp=amp) for way, amp in kinds.items()}
    steps = [lesson.medians(run)["step"] for run in runs.values()]
    about = f"stage 3, {runs['bf16'][0]['device_name']}"
    rows = [[about, *(f"{ms:.1f}" for ms in steps), f"{steps[1] / steps[0]:.2f}"]]
    titles = ["two ranks on two CPU cores", "fp32, ms per step", "bf16, ms per step", "bf16 / fp32"]
    lesson.table(titles, rows)
    accuracy = {way: lesson.medians(run)["accuracy"] for way, run in runs.items()}
    print(", ".join(f"accuracy with {way} {value:.2%}" for way, value in accuracy.items()))
    return accuracy

"""How soon does stage 1 reach an accuracy, and how soon do two ways that many learners start with?

Accuracy on the test images against seconds of training, on one thread. The clock runs while a way
trains, and stands still while the model is tested; imports and reading the files are not on it.

- stage 1's own train_epoch, at its defaults; and with flags that reach 99 % within one epoch
- the demo's way, as in demo_way.py: image by image, 32 per step, plain SGD at a rate of 1e-4
- the recipe of pytorch/examples' mnist/main.py: a larger net, dropout, 64 images per step, Adadelta
  at a rate of 1.0 that falls to 0.7 of it with every epoch; image by image, normalized

    python benchmarks/accuracy.py --data data
    python benchmarks/accuracy.py --data data --example-epochs 3 --results timings
"""

import argparse
import copy
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn as nn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor
from torch.optim import Adadelta, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import common
from benchmarks.demo_way import demo_setup, plain_epoch

stage1 = importlib.import_module("01_baseline.train")

Way = tuple[nn.Module, Optimizer, Callable[[], object]]  # model, optimizer, train one epoch
CORES = torch.get_num_threads()  # before it is set to one: a test, off the clock, may use them all
TARGETS = (0.9155, 0.98, 0.99)  # the first is what the demo reports after three epochs
STAGE1, SHORT = "stage 1", "stage 1 -e 1 -b 64 --lr 0.2"
DEMO, EXAMPLE = "demo's way", "pytorch/examples"
COLORS = {STAGE1: "#0072B2", SHORT: "#009E73", DEMO: "#D55E00", EXAMPLE: "#E69F00"}  # Okabe, Ito
NOTE = """
Tested every 20 steps; later when the time has grown by a tenth, but from 98.8 to 99 % again every
20 steps. A time is that of the first test that reaches the accuracy: up to a tenth too long.
"""


def main() -> None:
    args = parse()
    train_set, test_set = stage1.load_mnist(args.data)
    about = f"{common.dataset_name(test_set)}, one thread, {common.device_name()}, "
    about += f"torch {torch.__version__}"
    results = {"about": about, "ways": {}}
    print(f"{about}\n{heading()}", flush=True)
    for way, seeds, epochs, set_up in (
        (STAGE1, args.seeds, args.epochs, lambda: stage1_way(train_set, args.epochs)),
        (SHORT, args.seeds, 1, lambda: stage1_way(train_set, 1, batch_size=64, lr=0.2)),
        (DEMO, 1, args.demo_epochs, lambda: demo_way(args.data)),
        (EXAMPLE, 1, args.example_epochs, lambda: example_way(args.data)),
    ):
        results["ways"][way] = [
            Course(set_up, seed, test_set).train(epochs) for seed in range(seeds)
        ]
        print(row(way, results["ways"][way]), flush=True)
    print(NOTE, *findings(results["ways"]), sep="\n")
    if args.results:
        common.write_json(args.results / "accuracy.json", results)
        draw(results, args.results / "accuracy.png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="holds MNIST/raw")
    add("--epochs", type=int, default=2, help="of stage 1 (2)")
    add("--demo-epochs", type=int, default=3, help="of the demo's way (3)")
    add("--example-epochs", type=int, default=1, help="of the recipe (1)")
    add("--seeds", type=int, default=3, help="stage 1's; the others: one (3)")
    add("--results", type=Path, help="folder for accuracy.json and accuracy.png")
    return common.parse(parser, epochs=1, demo_epochs=1, example_epochs=1, seeds=1)


class Course:
    """One training: its accuracy against its seconds, for which the clock stands still."""

    def __init__(self, set_up: Callable[[], Way], seed: int, test_set: stage1.MNIST):
        torch.manual_seed(seed)
        self.model, optimizer, self.train_epoch = set_up()
        optimizer.register_step_post_hook(lambda *_: self.after_step())
        self.test_set, self.steps, self.seconds = test_set, 0, 0.0
        self.curve, self.epoch_ends = [], []

    def train(self, epochs: int) -> dict:
        """-> curve: [[steps, seconds, accuracy from 0 to 1], ...]; epoch_ends: seconds"""
        self.test()  # also warms up
        for _ in range(epochs):
            self.started = time.perf_counter()
            self.train_epoch()
            self.seconds += time.perf_counter() - self.started
            self.epoch_ends.append(self.seconds)
            if self.curve[-1][0] < self.steps:
                self.test()
        return {"curve": self.curve, "epoch_ends": self.epoch_ends}

    def after_step(self) -> None:
        self.steps += 1
        now = time.perf_counter()
        self.seconds, self.started = self.seconds + now - self.started, now
        if self.due():
            self.test()
            self.started = time.perf_counter()

    def due(self) -> bool:
        """Is it time for a test? NOTE is the rule, for the reader."""
        _, before, accuracy = self.curve[-1]
        return self.steps % 20 == 0 and (self.seconds > 1.1 * before or 0.988 <= accuracy < 0.99)

    def test(self) -> None:
        """Count right answers, off the clock: of a copy, which may be laid out for speed."""
        tested = copy.deepcopy(self.model).to(memory_format=torch.channels_last)
        torch.set_num_threads(CORES)
        correct, total = stage1.evaluate(InParts(tested), self.test_set, common.CPU).tolist()
        torch.set_num_threads(1)
        self.curve.append([self.steps, self.seconds, correct / total])


class InParts(nn.Module):
    """A model that takes its images a hundred at a time: they stay in the cache, which is quick."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.model(part) for part in x.split(100)])


# ---------------------------------------------------------------- the ways


def stage1_way(train_set: stage1.MNIST, epochs: int, **changed: float) -> Way:
    """Stage 1 with its flags' defaults, but for those that are changed."""
    flags = vars(stage1.base_parser().parse_args([])) | changed
    loader = common.make_loader(train_set, flags["batch_size"])
    model = stage1.ConvNet().to(memory_format=torch.channels_last)
    optimizer, schedule = common.sgd_one_cycle(model, flags["lr"], epochs * len(loader))
    rest = (loader, optimizer, schedule, common.CPU)
    return model, optimizer, lambda: stage1.train_epoch(model, *rest)


def demo_way(data: Path) -> Way:
    model, optimizer, loader = demo_setup(data)
    return model, optimizer, lambda: plain_epoch(model, optimizer, loader)


def example_way(data: Path) -> Way:
    """The recipe of pytorch/examples, mnist/main.py, shuffled as it is there on a GPU."""
    normalize = transforms.Normalize((0.1307,), (0.3081,))
    transform = transforms.Compose([transforms.ToTensor(), normalize])
    train_set = datasets.MNIST(data, train=True, transform=transform)
    loader = DataLoader(train_set, batch_size=64, shuffle=True)
    convolutions = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
    hidden = (nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5))
    net = nn.Sequential(*convolutions, nn.MaxPool2d(2), *hidden, nn.Linear(128, 10))
    optimizer = Adadelta(net.parameters(), lr=1.0)
    schedule = StepLR(optimizer, step_size=1, gamma=0.7)

    def train_epoch() -> None:
        plain_epoch(net, optimizer, loader)
        schedule.step()

    return nn.Sequential(normalize, net), optimizer, train_epoch  # the test's images are raw


# ---------------------------------------------------------------- what came out


def reached(course: dict, accuracy: float) -> float:
    """Seconds of training up to the first test that found the accuracy; infinity if none did."""
    return next((seconds for _, seconds, found in course["curve"] if found >= accuracy), math.inf)


def heading() -> str:
    targets = "".join(f"{f'{target:.4g} %':>20}" for target in (100 * t for t in TARGETS))
    return f"{'seconds of training to':30}{targets}{'first epoch':>20}{'accuracy':>10}"


def row(way: str, courses: list[dict]) -> str:
    """Medians over the seeds, with the smallest and the largest where there are several."""
    times = [[reached(course, target) for course in courses] for target in TARGETS]
    times.append([course["epoch_ends"][0] for course in courses])
    final = statistics.median(course["curve"][-1][2] for course in courses)
    return f"{way:30}" + "".join(f"{spread(own):>20}" for own in times) + f"{final:10.2%}"


def spread(seconds: list[float]) -> str:
    """Median, smallest and largest; a dash stands for never."""
    low, middle, high = (
        "-" if math.isinf(value) else f"{value:.2f}"
        for value in (min(seconds), statistics.median(seconds), max(seconds))
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def findings(ways: dict[str, list[dict]]) -> Iterator[str]:
    """Against the demo's way: 99 % before its first epoch ends? How much sooner at its last?"""
    demo = ways[DEMO][0]
    epoch, final = demo["epoch_ends"][0], demo["curve"][-1][2]
    for way in (STAGE1, SHORT):
        early = sum(reached(course, 0.99) < epoch for course in ways[way])
        yield (
            f"{way}: 99 % before the demo's way ends its first epoch ({epoch:.1f} s) "
            f"with {early} of {len(ways[way])} seed(s)"
        )
        seconds = statistics.median(reached(course, final) for course in ways[way])
        if 0 < seconds < math.inf:  # 0: the untrained model was as good
            times = reached(demo, final) / seconds
            yield f"{way}: the demo's last accuracy, {final:.2%}, {times:.0f} times as soon"


# ---------------------------------------------------------------- the picture


def draw(results: dict, path: Path) -> None:
    """Accuracy, stretched towards 100 %, against seconds of training: a line for each seed."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")  # inches
    axes = figure.subplots()
    for way, courses in results["ways"].items():
        draw_way(axes, way, courses)
    axes.set(xscale="log", xlabel="seconds of training on one core; a dot is the end of an epoch")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("logit", nonpositive="clip")
    axes.set(ylim=(0.2, 0.997), ylabel="accuracy on the test images")
    accuracies = (0.2, 0.5, 0.8, 0.95, *TARGETS, 0.995)
    axes.set_yticks(accuracies, [f"{100 * accuracy:.4g} %" for accuracy in accuracies])
    axes.minorticks_off()
    for target in TARGETS:
        axes.axhline(target, color="#999999", linewidth=0.8, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.suptitle(title(results["ways"]), x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.supxlabel(results["about"], x=0.01, ha="left", fontsize=9, color="#555555")
    style = {"dpi": 120, "facecolor": "white", "format": "png"}
    common.write_whole(path, lambda temp: figure.savefig(temp, **style))


def draw_way(axes: Axes, way: str, courses: list[dict]) -> None:
    """A line per seed: the first wide, with a dot where an epoch ends, the others thin."""
    for number, course in enumerate(courses):
        points = course["curve"][1:]  # no step, no time: a log axis has no place for it
        _, seconds, accuracy = zip(*points)
        first = number == 0
        style = {"color": COLORS[way], "linewidth": 2 if first else 0.7}
        axes.plot(seconds, accuracy, label=way if first else None, **style)
    ends = [[p for p in courses[0]["curve"] if p[1] <= end][-1] for end in courses[0]["epoch_ends"]]
    _, seconds, accuracy = zip(*ends)
    axes.plot(seconds, accuracy, "o", color=COLORS[way])


def title(ways: dict[str, list[dict]]) -> str:
    """Where the demo's way is when stage 1 is at 99 % (the median of its seeds), if it ever is."""
    after = statistics.median(reached(course, 0.99) for course in ways[SHORT])
    if math.isinf(after):
        return "How soon each way reaches an accuracy"
    demo = [accuracy for _, seconds, accuracy in ways[DEMO][0]["curve"] if seconds <= after][-1]
    return (
        f"Stage 1 can be at 99 % after {after:.1f} s; the demo's way is then at {100 * demo:.0f} %"
    )


if __name__ == "__main__":
    main()

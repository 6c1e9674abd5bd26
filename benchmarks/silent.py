"""What the silent mistakes cost: stage 4's minimal.py without one of its changes, on eight ranks.

Each script trains two epochs of MNIST and counts the correct test images, once for each seed. Stage
1's minimal.py does the same in one process. The script without change 5b takes longest, because
each of its ranks trains on all images.

    python -m benchmarks.silent --data data
"""

import importlib
import re
import statistics
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from benchmarks import common
from lib import processes

BASELINE = common.ROOT / "01_baseline/minimal.py"
stage = importlib.import_module("04_ddp_torchrun.without")

RANKS = 8
LEFT_OUT = ("5a", "5b", "7", "7b", "8")
TITLES = {"one": "nothing (stage 1, one process)", "none": "nothing"} | stage.TITLES
COUNT = re.compile(r"epoch 2: (\d+) of (\d+) test images correct")
TIMEOUT = 900  # seconds, after which a run hangs


def main() -> None:
    parser = common.flags(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = common.parse(parser, rounds=1)
    scripts = {"one": BASELINE.read_text(), "none": stage.PARALLEL.read_text()}
    for number in LEFT_OUT:
        scripts[number] = stage.without(number)
    correct = {number: [] for number in scripts}
    for seed in range(args.rounds):
        for number, text in scripts.items():
            count, images = train(with_seed(text, seed), args.data, 1 if number == "one" else RANKS)
            correct[number].append(count)
    synthetic = (args.data / "NOT_MNIST.txt").exists()
    results = {
        "about": common.about(),
        "dataset": "synthetic digits" if synthetic else "MNIST",
        "ranks": RANKS,
        "images": images,
        "correct": correct,
    }
    common.show(args, "silent", results, report)


def report(results: dict) -> str:
    rows = []
    for number, counts in results["correct"].items():
        median = round(statistics.median(counts))
        rows.append([number, TITLES[number], len(counts), median, min(counts), max(counts)])
    titles = ["change", "what is left out", "seeds", "correct", "lowest", "highest"]
    table = tabulate(rows, titles, intfmt=",")
    about = f"{results['ranks']} ranks, {results['dataset']}, {results['about']}"
    return f"correct of {results['images']:,} test images after two epochs, {about}\n{table}"


def with_seed(text: str, seed: int) -> str:
    """Return the script with other random numbers, which differ between the ranks."""
    assert "torch.manual_seed(0)" in text or "torch.manual_seed(rank)" in text
    text = text.replace("torch.manual_seed(0)", f"torch.manual_seed({seed})")
    return text.replace("torch.manual_seed(rank)", f"torch.manual_seed(rank + {RANKS * seed})")


def train(text: str, data: Path, ranks: int) -> tuple[int, int]:
    """Run a script -> its correct test images after two epochs, and how many test images it has.

    Raises SystemExit if the script fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "minimal.py")
        script.write_text(text)
        command = [sys.executable]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(ranks)]
        command.append(str(script))
        environment = {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "MNIST_ROOT": str(data.resolve()),
        }
        result = processes.run(command, TIMEOUT, environment, cwd=folder)
    found = COUNT.search(result.out)
    if result.code != 0 or not found:
        raise SystemExit(f"A run failed:\n{result.err}")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    main()

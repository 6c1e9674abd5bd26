"""Run the commands on benchmarks/README.md, and put what each one prints under it.

The page is the list: every shell block on it is run, and the block after it is replaced by the
output. Pictures and figures go to benchmarks/results. So the page shows the machine it was last run
on, and `git diff` shows how yours differs from ours.

    python -m benchmarks.run_all                       # or: make bench
    python -m benchmarks.run_all --only limit sweep --data ../mnist
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks/README.md"
BLOCK = re.compile(r"```sh\n(python -m benchmarks\.(\w+)[^\n]*)\n```\n\n```\n.*?```\n", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="run only scripts with such names")
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = parser.parse_args()
    blocks = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
    commands = [block[1] for block in blocks if not args.only or block[2] in args.only]
    if not commands:
        parser.error("--only: no command on the page has such a name")
    failed = 0
    for number, command in enumerate(commands, start=1):
        print(f"[{number}/{len(commands)}] {command}", flush=True)
        started = time.time()
        code, output = run(command, args.data)
        print(f"{output}    {time.time() - started:.0f} s\n", flush=True)
        if code:
            failed += 1
        else:
            update_page(command, output)
    return 1 if failed else 0


def run(command: str, data: Path) -> tuple[int, str]:
    """Run a command of the page from the repository's root -> exit code, what it printed."""
    _, *words = shlex.split(command)
    if "--data" in words:
        words[words.index("--data") + 1] = str(data.resolve())
    words += ["--results", "benchmarks/results"]
    result = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return result.returncode, result.stdout


def update_page(command: str, output: str) -> None:
    """Put the output under the command; read anew each time, so that an edit meanwhile survives."""

    def replaced(match: re.Match) -> str:
        fresh = f"```sh\n{command}\n```\n\n```\n{output.strip()}\n```\n"
        return fresh if match[1] == command else match[0]

    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(replaced, page), encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nrun_all: interrupted", file=sys.stderr)
        sys.exit(130)

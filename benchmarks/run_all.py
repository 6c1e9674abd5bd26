"""Run the commands whose output benchmarks/README.md and docs/ show, and put it there.

The pages are the list: a shell block under the line <!-- measured --> is run, and the block after
it is replaced by what it prints. Pictures and figures go to benchmarks/results. So the pages show
the machine they were last run on, and `git diff` shows how yours differs from ours.

    python -m benchmarks.run_all                       # or: make bench
    python -m benchmarks.run_all --only limit accumulation --data ../mnist
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- measured -->\n\n```sh\n([^`]+)\n```\n\n```\n.*?```\n", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="run only scripts with such names")
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds MNIST/raw (data)")
    args = parser.parse_args()
    found = [
        (page, command)
        for page in PAGES
        for command in BLOCK.findall(page.read_text(encoding="utf-8"))
        if not args.only or script_of(command) in args.only
    ]
    if not found:
        parser.error("--only: no command on the pages has such a name")
    failed = 0
    for number, (page, command) in enumerate(found, start=1):
        print(f"[{number}/{len(found)}] {command}", flush=True)
        started = time.time()
        code, output = run(command, args.data)
        print(f"{output}    {time.time() - started:.0f} s\n", flush=True)
        if code:
            failed += 1
        else:
            update_page(page, command, output)
    return 1 if failed else 0


def script_of(command: str) -> str:
    """The name by which --only knows a command: that of its script, without folder and ending."""
    match = re.search(r"-m benchmarks\.(\w+)|(\w+)\.py", command)
    return match[1] or match[2]


def run(command: str, data: Path) -> tuple[int, str]:
    """Run a command of a page from the repository's root -> exit code, what it printed."""
    command = command.replace("--data data", f"--data {shlex.quote(str(data.resolve()))}")
    if command.startswith("python -m benchmarks."):
        command += " --results benchmarks/results"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # python and torchrun
    words, options = ["bash", "-ec", command], {"cwd": ROOT, "env": os.environ | {"PATH": path}}
    options |= {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(words, **options) as process:
        try:
            output, _ = process.communicate()
        except BaseException:  # Ctrl-C or SIGTERM: end what bash has started, too
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return process.returncode, output


def update_page(page: Path, command: str, output: str) -> None:
    """Put the output under the command; read anew each time, so that an edit meanwhile survives."""

    def replaced(match: re.Match) -> str:
        fresh = f"<!-- measured -->\n\n```sh\n{command}\n```\n\n```\n{output.strip()}\n```\n"
        return fresh if match[1] == command else match[0]

    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(replaced, text), encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nrun_all: interrupted", file=sys.stderr)
        sys.exit(130)

"""Make the environment .venv and install requirements into it. The Makefile calls this script.

    python3 tools/set_up.py requirements.txt
    python3 tools/set_up.py requirements.txt --torch default

On Linux the PyTorch of PyPI contains CUDA. A machine without an NVIDIA GPU has no use for it. There
this script installs PyTorch's CPU build first, which is much smaller, and everything else from
PyPI. With --torch default, PyTorch comes from PyPI on every machine.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
GPU = Path("/dev/nvidia0")
VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "reader"  # The Makefile makes this file when requirements.txt is installed.
# This file is in .venv while something is installed. So an interrupted set-up can be recognized:
# pip takes a package for installed before the commands of the package are there.
UNFINISHED = VENV / "unfinished"
DEFAULT = "the default one with CUDA follows (3 GB to download, 6 GB on the disk)"
CONSTRAINTS = "requirements/constraints.txt"


def main():
    args = parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 (any Python may be called)
        sys.exit(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}")
    make_environment()
    if args.torch == "auto" and sys.platform == "linux" and not has_nvidia_gpu():
        install_cpu_build(args.requirements)
    say(f"installing {args.requirements}; if nothing moves for a minute, pip is unpacking PyTorch")
    if run_pip("-c", CONSTRAINTS, "--requirement", args.requirements) != 0:
        # Without a network pip fails before it changes anything. What was complete still is.
        if STAMP.exists():
            UNFINISHED.unlink()
        sys.exit(1)
    UNFINISHED.unlink(missing_ok=True)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("requirements", help="a file of requirements; one that names torch chooses its build")
    add("--torch", choices=("auto", "default"), default="auto", help="the build of PyTorch (auto)")
    return parser.parse_args()


def say(text):
    print(f"== {text}", flush=True)  # pip prints at once, so this line must not wait in a buffer.


def make_environment():
    """Make .venv, or use the one that is there, if its set-up was not interrupted."""
    if UNFINISHED.exists():
        say("the last set-up of .venv did not come to its end: .venv is removed and made again")
        shutil.rmtree(VENV)
    if not VENV.exists():
        say("making .venv (once); this takes ten seconds or more")
        VENV.mkdir()
        UNFINISHED.touch()
        venv.create(VENV, symlinks=True, with_pip=True)
        run_pip("--upgrade", "pip")  # The newest pip shows its progress while it unpacks, too.
    elif STAMP.exists():  # The requirements have changed. Without a stamp .venv is not ours.
        UNFINISHED.touch()
    if not (VENV / "bin" / "pip").exists():  # uv makes environments without pip.
        run([PYTHON, "-m", "ensurepip"])


def has_nvidia_gpu():
    """Whether the driver of a GPU is there. Under Windows' WSL, a GPU is no file in /dev."""
    return GPU.exists() or shutil.which("nvidia-smi") is not None


def install_cpu_build(requirements):
    """Install torch and torchvision without CUDA, if their index can be reached."""
    lines = Path(requirements).read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if line.startswith("torch")]
    if not packages:
        return
    say("no NVIDIA GPU here, so PyTorch's CPU build is taken; make TORCH=default takes CUDA's")
    try:
        urllib.request.urlopen(f"{CPU_BUILDS}/torch/", timeout=5).close()
    except Exception as error:  # no network, a proxy, a certificate: each has one of its own
        say(f"the CPU build cannot be reached ({error}), so {DEFAULT}")
        return
    # What they need comes from PyPI afterwards, in the versions of the constraints.
    options = ["--no-deps", *packages]
    uv = shutil.which("uv")
    if uv is not None:
        backend = ["--python", PYTHON, "--torch-backend", "cpu"]
        if run([uv, "pip", "install", *backend, *options]) == 0:
            return
    if run_pip("--index-url", CPU_BUILDS, *options) != 0:
        say(f"the CPU build could not be installed, so {DEFAULT}")


def run_pip(*options):
    return run([PYTHON, "-m", "pip", "install", "--disable-pip-version-check", *options])


def run(command):
    """Run a command and return its exit code."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # Ctrl-C reaches the command, too, and pip then removes what it has downloaded.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()
        raise


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print(
            "\nset_up.py: interrupted, so .venv is not complete. Run the command again.",
            file=sys.stderr,
        )
        sys.exit(130)

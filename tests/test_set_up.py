"""tools/set_up.py: which build of PyTorch it takes, and what an interrupted set-up leaves."""

import io
import os
import signal
import sys
import urllib.error

import pytest
from conftest import LINUX, ROOT, wait_for

from tools import set_up

PINS = ["torch==2.14.1", "torchvision==0.29.1"]
# pip builds a package with a module of the package. This one says that it runs, and goes on.
SLOW_PACKAGE = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
SLOW_BACKEND = """
import pathlib, time
pathlib.Path(__file__).with_name("began").touch()
time.sleep(300)
"""


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Call main() in an empty folder, on a machine that is described -> the commands it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("\n".join(["# comment", *PINS, "tqdm"]))
    commands = []

    def call(*flags, platform="linux", programs=(), gpu=False, network=True, fails="", stops=""):
        def run(command):
            commands.append(" ".join(map(str, command)))
            if stops in command:
                raise KeyboardInterrupt
            return int(fails in command)

        def urlopen(address, timeout):
            if not network:
                raise urllib.error.URLError("no network")
            return io.BytesIO()

        monkeypatch.setattr(sys, "argv", ["set_up.py", "requirements.txt", *flags])
        monkeypatch.setattr(set_up.urllib.request, "urlopen", urlopen)
        monkeypatch.setattr(sys, "platform", platform)
        which = {name: f"/bin/{name}" for name in programs}
        monkeypatch.setattr(set_up.shutil, "which", which.get)
        monkeypatch.setattr(set_up, "GPU", tmp_path if gpu else tmp_path / "none")
        monkeypatch.setattr(set_up, "run", run)
        monkeypatch.setattr(set_up.venv, "create", lambda *_, **__: None)
        set_up.main()
        return commands

    return call


def cpu_builds(commands):
    """The commands that install torch by itself."""
    return [command for command in commands if PINS[0] in command]


def test_without_a_gpu_the_cpu_build_comes_first(called):
    commands = called()
    (first,) = cpu_builds(commands)
    assert f"--index-url {set_up.CPU_BUILDS}" in first
    assert first.endswith(f"--no-deps {' '.join(PINS)}")
    assert commands.index(first) < len(commands) - 1
    assert commands[-1].endswith("-c requirements/constraints.txt --requirement requirements.txt")


def test_uv_knows_the_cpu_build_itself(called):
    (first,) = cpu_builds(called(programs=["uv"]))
    assert first.startswith("/bin/uv pip install --python .venv/bin/python --torch-backend cpu")


@pytest.mark.parametrize(
    "machine",
    [
        {"gpu": True},
        {"programs": ["nvidia-smi"]},
        {"platform": "darwin"},  # PyPI's builds for macOS and Windows have no CUDA
    ],
)
def test_other_machines_take_the_default(called, machine):
    assert not cpu_builds(called(**machine))


def test_the_reader_can_choose_the_default(called):
    assert not cpu_builds(called("--torch", "default"))


def test_an_index_that_cannot_be_reached_is_said_in_one_line(called, capsys):
    commands = called(network=False)
    assert not cpu_builds(commands) and "--requirement" in commands[-1]
    lines = [line for line in capsys.readouterr().out.splitlines() if "cannot be reached" in line]
    assert len(lines) == 1 and lines[0].endswith(set_up.DEFAULT)


def test_a_cpu_build_that_cannot_be_installed_is_replaced_by_the_default(called, capsys):
    commands = called(fails="--index-url")
    assert "--requirement" in commands[-1]
    assert f"could not be installed, so {set_up.DEFAULT}" in capsys.readouterr().out


def test_a_set_up_that_was_interrupted_starts_again(called, tmp_path):
    old = tmp_path / ".venv" / "old"
    called()
    assert not set_up.UNFINISHED.exists()
    old.touch()
    set_up.STAMP.touch()
    called()
    assert old.exists(), "a set-up that is complete is kept"
    with pytest.raises(SystemExit):
        called(fails="--requirement")
    called()
    assert old.exists(), "an update that fails, for example without a network, changes nothing"
    with pytest.raises(KeyboardInterrupt):
        called(stops="--requirement")
    called()
    assert not old.exists() and not set_up.UNFINISHED.exists()


def test_an_environment_of_the_readers_own_is_never_removed(called, tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "mine").touch()
    for _ in range(2):
        with pytest.raises(SystemExit):
            called(fails="--requirement")
    assert (tmp_path / ".venv" / "mine").exists()


@LINUX
@pytest.mark.slow
def test_ctrl_c_while_pip_works(reader):
    """It ends with one line, leaves no process, and the next call makes the environment again."""
    (reader.folder / "slow").mkdir()
    (reader.folder / "slow" / "pyproject.toml").write_text(SLOW_PACKAGE)
    (reader.folder / "slow" / "backend.py").write_text(SLOW_BACKEND)
    (reader.folder / "requirements").symlink_to(ROOT / "requirements")
    (reader.folder / "slow.txt").write_text("./slow\n")
    (reader.folder / "none.txt").write_text("")
    process = reader.start("python tools/set_up.py slow.txt", PIP_NO_INDEX="1")
    wait_for((reader.folder / "slow" / "began").exists)
    os.killpg(process.pid, signal.SIGINT)
    result = reader.finish(process)
    assert result.code == 130 and "Traceback" not in result.err, result
    assert result.err.endswith("Run the command again.\n"), result
    unfinished = reader.folder / set_up.UNFINISHED
    assert unfinished.exists()
    result = reader.run("python tools/set_up.py none.txt", PIP_NO_INDEX="1")
    assert result.code == 0 and "is removed and made again" in result.out, result
    assert not unfinished.exists()

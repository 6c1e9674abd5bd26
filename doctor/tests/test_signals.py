"""A signal ends the ranks, and a second one does not lose the report."""

import signal
import subprocess
import sys
import time

import pytest
from conftest import DOCTOR, TORCHRUN

SCRIPT = """
import signal, time, torch, torch.distributed as dist
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that ending it takes seconds
dist.init_process_group("gloo")
print("begun", flush=True)
time.sleep(500)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_ranks_and_a_second_one_does_not_lose_the_report(name, user):
    number = getattr(signal, name)
    (user.folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(DOCTOR), "check", *TORCHRUN.split(), "train.py"]
    options = {"cwd": user.folder, "env": user.env, "text": True, "stdout": subprocess.PIPE}
    options["preexec_fn"] = lambda: signal.signal(number, signal.SIG_DFL)  # nohup may ignore it
    doctor = subprocess.Popen(command, **options)
    assert "begun" in doctor.stdout.readline()
    doctor.send_signal(number)
    time.sleep(2)
    doctor.send_signal(number)
    out, _ = doctor.communicate(timeout=100)
    assert doctor.returncode == 2 and "The command was interrupted; 2 rank(s) seen" in out
    user.check_nothing_is_left(out)

"""ddp-doctor explain: the corpus of logs, broken input, and the table of the pages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import judge_logs
import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(__file__).parent / "logs"
CASES = {case["id"]: case for case in judge_logs.cases_of(LOGS)}
# Of these the ranks or the line are not found, with the reason.
NOT_YET = {
    "t09-bf16-model-in-fp16": "the first line of the script is named, and not the last one",
    "u01-four-processes-one-gpu": "the ranks that raise are named, though all raise alike",
    "u03-loader-worker-oom-killed": "the last line of the user's own code is in a library's folder",
    "u10-nan-batch-skipped-on-one-rank": "the line is in a log line and not in a traceback",
    "w04-vocabulary-of-each-shard": "the tracebacks name no ranks",
    "w10-four-channels": "the worker's line is named, and not that of the loop",
    "v06-numpy-in-checkpoint": "the ranks that raise are named, though all raise alike",
    "v15-fewer-gpus-on-resume": "the ranks that raise are named, though all raise alike",
    "x06-old-driver-on-one-node": "the driver is named, and the ranks of its node are not",
    "z08-driver-of-2021": "the message of the consequence is taken for the cause",
    "y07-wandb-hangs-at-the-end": "after the end of the run no rank is named",
    "v16-pod-over-its-limit": "a pod's name does not say which rank it is",
}


def explain(*words, stdin=b""):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "doctor")}
    command = [sys.executable, "-X", "utf8", "-m", "ddp_doctor", "explain", *map(str, words)]
    result = subprocess.run(command, input=stdin, capture_output=True, env=environment)
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return result.returncode, result.stdout.decode()


@pytest.mark.parametrize("name", CASES)
def test_ranks_line_and_nothing_wrong(name):
    _, faults, text = judge_logs.judge(LOGS, CASES[name])
    wrong = [fault for fault in faults if not fault.startswith("not said")]
    assert bool(wrong) == (name in NOT_YET), (wrong, text)
    assert len(text.splitlines()) <= 20, text


def test_most_explanations_say_all_that_they_should():
    verdicts = [judge_logs.judge(LOGS, case)[0] for case in CASES.values()]
    assert verdicts.count("right") >= 105 and verdicts.count("wrong") <= len(NOT_YET), verdicts


def test_the_exit_code_and_the_json(tmp_path):
    for name, code in (("s28-healthy-nccl-info", 0), ("s01-rank-out-of-batches", 1)):
        found, _ = explain("--json", tmp_path / "out.json", LOGS / f"{name}.log")
        written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert found == written["exit"] == code
        assert written["ranks"] == CASES[name]["root_cause_ranks"]
    assert explain(LOGS / "t15-only-the-summary.log")[0] == 2


def test_a_folder_of_logs_is_one_run(tmp_path):
    """As torchrun --log-dir writes it: a folder per attempt and rank."""
    for rank in ("0", "1"):
        folder = tmp_path / "job/attempt_0" / rank
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("epoch 1 loss 0.5\n")
    error = "Traceback (most recent call last):\n"
    error += '  File "/home/u/train.py", line 7, in main\nValueError: no label\n'
    (tmp_path / "job/attempt_0/1/stderr.log").write_text(error)
    code, text = explain(tmp_path)
    assert code == 1 and "Root cause: rank 1, /home/u/train.py:7" in text


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        pytest.param(b"", 2, id="empty"),
        pytest.param(b"\n\n", 2, id="blank"),
        pytest.param(b"\xff\xfe\x00\x80 rank {0}\r\n", 0, id="bytes"),
        pytest.param(b"\x1b[31m10%|#\r20%|##\r\x1b[0m", 0, id="bar"),
    ],
)
def test_input_without_a_message_names_no_cause(content, wanted):
    code, text = explain("-", stdin=content)
    assert code == wanted
    assert "Root cause: none" in text


def test_standard_input_after_a_folder_leaves_the_files_of_the_folder(tmp_path):
    for rank in range(3):
        (tmp_path / f"rank_{rank}.log").write_text("epoch 0\n")
    code, found = explain(tmp_path, "-", stdin=b"[rank3]: ValueError: wrong\n")
    assert code and "rank 3" in found
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("traceback : Signal 9 (SIGKILL) received by PID 1234", "A rank was killed"),
        ("  exitcode  : -9 (pid: 1234)", "killed by signal 9 (SIGKILL) from outside"),
        ("exitcode  : -11 (pid: 1234)", "crashed with a segmentation fault (signal 11)"),
        ("  exitcode  : 1 (pid: 1234)\n  error_file: <N/A>", "ended with an exit code"),
        ("  exitcode  : -15 (pid: 1234)", "stopped the ranks (SIGTERM)"),
        (
            "  traceback : Traceback (most recent call last):\n"
            '    File "/home/u/train.py", line 7, in main\n'
            "  RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
            "(no line names a rank), /home/u/train.py:7",
        ),
    ],
)
def test_the_end_of_torchruns_report_without_the_line_of_the_rank(content, wanted):
    name = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    for text in (content, name + content):
        code, found = explain("-", stdin=text.encode())
        assert code == 2 and wanted in found
        assert "Root cause: the process of this report" in found


def test_carriage_returns_and_colours_change_nothing():
    log = (LOGS / "s20-worker-bus-error.log").read_bytes()
    plain = explain("-", stdin=log)[1]
    other = explain("-", stdin=log.replace(b"\n", b"\x1b[0m\r\n"))[1]
    assert hide_name(plain) == hide_name(other)


def hide_name(text):
    return re.sub(r"tmp\w+\.log", "LOG", text)


def test_the_table_is_in_step_with_the_pages():
    command = [sys.executable, "-m", "tools.messages_table", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_explain_does_not_import_torch():
    code = "import sys, ddp_doctor.explain.words; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "doctor").returncode == 0


OWN_ERROR = b"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 19, in broken
[rank1]:     raise ValueError("label 17 is not below 10")
[rank1]: ValueError: label 17 is not below 10
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 35, in main
[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:52421. This is typically caused by
"""


def test_an_exception_without_an_entry_is_the_cause_and_its_reason_is_not_certain():
    code, text = explain("-", stdin=OWN_ERROR)
    assert code == 1
    assert "Root cause: rank 1, /home/u/train.py:19" in text
    assert "Certain? the rank and the line, yes; the reason is in the script" in text

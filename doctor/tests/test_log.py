"""ddp-doctor log: the forms, the corpus of logs, broken input."""

import json
import re
import subprocess
import sys

import pytest
from conftest import DOCTOR
from ddp_doctor.log import excerpt_of, forms, looks_wrong, text_of
from logs_with_labels import cases

ROOT = DOCTOR.parent
CASES = {case.name: case for case in cases()}
GPU = sorted((DOCTOR / "tests/gpu_logs").glob("*.log"))
# What the excerpt says in its own words must not sound like a judgement.
JUDGEMENT = re.compile(r"root cause|certain|because|correct the|you should", re.IGNORECASE)


def flat(excerpt):
    return " ".join(text_of(excerpt).split())


def read(folder, **files):
    """-> the excerpt of files with these names (without .log) and texts."""
    paths = []
    for name, text in files.items():
        path = folder / (name.replace("__", "-") + ".log")
        path.write_text(text)
        paths.append(path)
    return excerpt_of(paths)


@pytest.fixture(scope="module")
def excerpts(tmp_path_factory):
    """name -> the excerpt of each log."""
    found = {}
    for name, case in CASES.items():
        found[name] = excerpt_of(case.write(tmp_path_factory.mktemp("log")))
    return found


def shows(case, text):
    """Does the text have one of the alternatives of each of the label's lines?"""
    for either in case.shows:
        if not any(words in text for words in either):
            return False
    return True


# ------------------------------------------------------------------ the forms


@pytest.mark.parametrize("form", forms.FORMS, ids=lambda form: form.word)
def test_a_form_matches_its_example(form):
    assert form.word in form.example
    assert form.pattern.search(form.example)


# ------------------------------------------------------------------ the corpus


def test_the_words_of_the_labels_stand_in_the_logs():
    for case in CASES.values():
        whole = " ".join(" ".join(text.split()) for _, text in case.files)
        for either in case.shows:
            assert any(words in whole for words in either), (case.name, either)


def test_the_line_of_the_script_is_shown(excerpts):
    missing = []
    for name, case in CASES.items():
        if case.line and case.line not in flat(excerpts[name]):
            missing.append(name)
    assert len(missing) <= 4, missing  # of 102


def test_the_lines_that_decide_are_shown(excerpts):
    missing = [name for name, case in CASES.items() if not shows(case, flat(excerpts[name]))]
    assert len(missing) <= 6, missing  # of 161


def test_the_entry_is_named(excerpts):
    missing = []
    for name, case in CASES.items():
        pages = [entry.page for entry in excerpts[name].entries]
        if case.entries and not set(pages) & set(case.entries):
            missing.append(name)
    assert len(missing) <= 8, missing  # of 88


def test_the_first_error_is_one_of_a_rank_that_failed(excerpts):
    wrong = []
    for name, case in CASES.items():
        errors = [one for one in excerpts[name].errors if one.kind == "own" and one.ranks]
        if case.ranks and errors and not set(errors[0].ranks) & set(case.ranks):
            wrong.append(name)
    assert len(wrong) <= 3, wrong


def test_a_run_that_failed_looks_wrong(excerpts):
    for name, case in CASES.items():
        assert case.ends_well or looks_wrong(excerpts[name]), name


def test_an_excerpt_is_short_and_judges_nothing(excerpts):
    for name, case in CASES.items():
        text = text_of(excerpts[name])
        assert len(text.splitlines()) <= 15, name
        whole = " ".join(text for _, text in case.files)
        titles = " ".join(entry.title for entry in excerpts[name].entries)
        for word in JUDGEMENT.findall(text):
            assert word in whole + titles, (name, word)


@pytest.mark.parametrize("path", GPU, ids=lambda path: path.stem)
def test_the_line_of_a_log_of_a_gpu_is_shown(path):
    lines = re.findall(r'File "(/runs/\w+\.py)", line (\d+)', path.read_text())
    text = text_of(excerpt_of([path]))
    assert all(f"{file}:{number}" in text for file, number in lines)


# ------------------------------------------------------------------ what stands in front of lines


def logger(number, line):
    level = "ERROR" if number % 3 == 0 else "INFO"
    return f"2026-11-02 10:15:{number % 60:02},{number % 1000:03} - trainer - {level} - {line}"


def editor(number, line):
    return f"[{80000 + number}] {line}"


def column(number, line):
    return f"{number:>6}  {line}"


def numbered(number, line):
    return f"{number:>6}\t{line}"


def box(number, line):
    return f"\u2502 {line}"


@pytest.mark.parametrize("prefix", [logger, editor, column, numbered, box])
def test_a_prefix_of_each_line_changes_at_most_one_answer_of_ten(prefix, excerpts, tmp_path):
    changed = []
    for name, case in CASES.items():
        other = excerpt_of(case.write(tmp_path, prefix))
        before = flat(excerpts[name])
        after = flat(other)
        same = shows(case, before) == shows(case, after)
        same &= (case.line or "") in before or (case.line or "") not in after
        same &= [one.line for one in other.errors] == [one.line for one in excerpts[name].errors]
        same &= [one.ranks for one in other.errors] == [one.ranks for one in excerpts[name].errors]
        if not same:
            changed.append(name)
    assert len(changed) <= len(CASES) / 10, changed


# ------------------------------------------------------------------ false statements of the past

WATCHDOG = (
    "[rank{0}]:[E1118 10:39:07.3 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600042 milliseconds before timing out.\n"
    "[rank{0}]:[E1118 10:39:07.3 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0 Rank {0}]  "
    "failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: {2}, "
    "last completed work: 7\n"
)
RAISED = 'Traceback (most recent call last):\n  File "/u/train.py", line 7, in main\n    f()\n'


def test_the_last_completed_work_is_no_normal_end(tmp_path):
    assert read(tmp_path, run=WATCHDOG.format(0, 8, 9)).finished == []


def test_the_enqueued_collectives_are_shown_next_to_the_number(tmp_path):
    text = WATCHDOG.format(0, 10, 9) + WATCHDOG.format(1, 8, 9)
    excerpt = read(tmp_path, run=text)
    assert [one.number for one in excerpt.waited] == ["10", "8"]
    assert [one.enqueued for one in excerpt.queues] == [9, 9]
    assert "behind" not in text_of(excerpt)


def test_the_rank_of_the_run_is_shown_and_not_that_of_the_group(tmp_path):
    text = WATCHDOG.format(0, 8, 9).replace("[rank0]", "[rank4]").replace("GUID 0", "GUID 3(tp)")
    excerpt = read(tmp_path, run=text)
    assert excerpt.waited[0].rank == excerpt.queues[0].rank == 4
    assert excerpt.queues[0].group == "tp"


def test_a_task_of_slurm_is_no_rank_under_torchrun(tmp_path):
    text = "0: starting\n1: starting\n" * 5
    text += "".join(f"1: {line}\n" for line in (RAISED + "ValueError: no label").splitlines())
    assert read(tmp_path, run=text).errors[0].ranks == (1,)
    text += "1: E1118 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python\n"
    assert read(tmp_path, run=text).errors[0].ranks == ()


def test_a_line_of_slurm_gives_its_task_to_no_rank(tmp_path):
    text = RAISED + "ValueError: no label\nsrun: error: gn31: task 0: Exited with exit code 1\n"
    excerpt = read(tmp_path, run=text)
    assert excerpt.errors[0].ranks == excerpt.said[0].ranks == ()


def test_the_name_of_a_pod_says_no_rank(tmp_path):
    files = {
        "job__node__0__0": RAISED + "ValueError: a",
        "job__node__0__1": RAISED + "ValueError: b",
    }
    assert [one.ranks for one in read(tmp_path, **files).errors] == [(), ()]


@pytest.mark.parametrize(
    ("name", "ranks"), [("rank3", (3,)), ("node_rank3", ()), ("job_3", ()), ("38211_3_log", (3,))]
)
def test_the_name_of_a_file_says_its_rank(tmp_path, name, ranks):
    path = tmp_path / f"{name}.out"
    path.write_text(RAISED + "ValueError: a")
    assert excerpt_of([path]).errors[0].ranks == ranks


@pytest.mark.parametrize("verb", ["build", "built"])
def test_both_spellings_of_the_message_on_libuv_have_the_entry(tmp_path, verb):
    words = f"RuntimeError: use_libuv was requested but PyTorch was {verb} without libuv support"
    entries = read(tmp_path, run=RAISED + words).entries
    assert "libuv" in entries[0].page


def test_a_traceback_without_a_rank_belongs_to_none(tmp_path):
    text = (
        RAISED
        + "FileNotFoundError: /data/a.txt\n[rank1]: "
        + "\n[rank1]: ".join((RAISED + "ValueError: no label").splitlines())
    )
    first, second = read(tmp_path, run=text).errors
    assert (first.ranks, second.ranks) == ((), (1,))


@pytest.mark.parametrize(
    "line", ["Process 4711 exits successfully.", "End of training.", "'train_runtime': 81.2"]
)
def test_a_normal_end_is_shown(tmp_path, line):
    excerpt = read(tmp_path, run=f"step 1\n{line}\nbye\n")
    assert [(one.text, one.after) for one in excerpt.finished] == [(line, 1)]
    assert not looks_wrong(excerpt)


REPLICA = """Traceback (most recent call last):
  File "/u/train.py", line 22, in main
    out = model(x)
  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 772, in reraise
    raise exception
StopIteration: Caught StopIteration in replica 0 on device 0.
Original Traceback (most recent call last):
  File "/u/model.py", line 12, in forward
    device = next(self.parameters()).device
StopIteration
"""
LOADING = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/u/train.py", line 22, in main
[rank1]:     state = torch.load("last.pt")
[rank1]:   File "/v/lib/python3.11/site-packages/torch/serialization.py", line 721, in {}
[rank1]:     result = fn(storage, location)
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB.
"""


@pytest.mark.parametrize("text", [REPLICA, REPLICA.splitlines()[5]], ids=["traceback", "line"])
def test_an_error_in_a_replica_has_its_entry(tmp_path, text):
    excerpt = read(tmp_path, job=text)
    assert "replica 0 on device 0" in flat(excerpt)
    assert "dataparallels-replicas-have-no-parameters" in excerpt.entries[0].page


def test_only_frames_of_loading_lead_to_the_entry_on_loading(tmp_path):
    """The frames of libraries decide between entries, and are not printed."""
    pages = {}
    for function in ("default_restore_location", "forward"):
        excerpt = read(tmp_path, rank1=LOADING.format(function))
        assert function not in text_of(excerpt)
        pages[function] = [entry.page.partition("#")[2] for entry in excerpt.entries]
    loading = "every-rank-loads-the-checkpoint-onto-gpu-0"
    assert pages["default_restore_location"] == [loading]
    assert pages["forward"][0] != loading


@pytest.mark.parametrize(
    ("line", "anchor"),
    [
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000", "two-ranks-use"),
        (
            "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 "
            "to enable this configuration.",
            "two-ranks-use",
        ),
        ("Detected mismatch between collectives on ranks.", "two-ranks-called-different"),
    ],
)
def test_a_line_without_its_exception_has_its_entry(tmp_path, line, anchor):
    excerpt = read(tmp_path, job=line + "\n")
    assert looks_wrong(excerpt)
    assert anchor in excerpt.entries[0].page


def test_an_error_that_was_caught_is_shown_with_the_end_behind_it(tmp_path):
    text = RAISED + "ValueError: retrying\nstep 2\nTraining finished\n"
    excerpt = read(tmp_path, run=text)
    assert excerpt.errors and excerpt.finished[0].after == 0


def test_an_interrupt_is_not_the_error_of_a_rank(tmp_path):
    excerpt = read(tmp_path, run=RAISED + "KeyboardInterrupt\n")
    assert [one.kind for one in excerpt.errors] == ["waited"]


def test_a_frame_is_never_taken_for_a_message(excerpts):
    for name, excerpt in excerpts.items():
        for error in excerpt.errors:
            assert not error.message.startswith("File "), name


RICH = """\
\u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e
\u2502 /u/train.py:7 in main                     \u2502
\u2502                                           \u2502
\u2502 \u2771  7     f()                             \u2502
\u2502 /venv/lib/python3.10/site-packages/a.py:3 in f \u2502
\u2570\u2500\u2500\u2500\u256f
ValueError: no label
"""


def test_a_traceback_in_a_box_has_its_line(tmp_path):
    error = read(tmp_path, run=RICH).errors[0]
    assert (error.message, error.line) == ("ValueError: no label", "/u/train.py:7")


def test_the_stack_of_faulthandler_has_its_innermost_line(tmp_path):
    text = "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n"
    text += '  File "/venv/lib/python3.10/site-packages/a.py", line 3 in f\n'
    text += '  File "/u/model.py", line 9 in step\n  File "/u/train.py", line 7 in main\n'
    text += '\nThread 0x8f (most recent call first):\n  File "/u/other.py", line 1 in run\n'
    error = read(tmp_path, run=text).errors[0]
    assert (error.line, error.called_from) == ("/u/model.py:9", "/u/train.py:7")


def test_an_exception_without_a_traceback_goes_on_below(tmp_path):
    text = "RuntimeError: Error(s) in loading state_dict for Linear:\n\tMissing key(s): a.weight\n"
    said = read(tmp_path, run=text + "\tUnexpected key(s): weight\nstep 1\n").said[0]
    assert said.text.endswith("Linear: Missing key(s): a.weight Unexpected key(s): weight")


def test_a_line_that_only_has_such_words_is_shown_if_nothing_else_is(tmp_path):
    excerpt = read(tmp_path, run="epoch 1\nThe worker could not be reached\n")
    assert [one.kind for one in excerpt.said] == ["mention"] and looks_wrong(excerpt)
    excerpt = read(tmp_path, run="could not open one image\n" + RAISED + "ValueError: no label\n")
    assert excerpt.said == []


# ------------------------------------------------------------------ files and the command line


def test_a_folder_of_logs_is_one_run(tmp_path):
    """As torchrun --log-dir writes it: a folder per attempt and rank."""
    for rank in ("0", "1"):
        folder = tmp_path / "job/attempt_0" / rank
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("epoch 1 loss 0.5\n")
    (tmp_path / "job/attempt_0/1/stderr.log").write_text(RAISED + "ValueError: no label\n")
    (tmp_path / "job/attempt_0/1/error.json").write_text("Error: the same, for programs")
    (tmp_path / "job/trace_rank_1").write_bytes(b"\x80\0Error: a recording")
    excerpt = excerpt_of([tmp_path])
    assert [(one.line, one.at) for one in excerpt.errors] == [("/u/train.py:7", "1/stderr.log:4")]
    assert excerpt.said == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_encodings_colours_and_line_ends_change_nothing(tmp_path, encoding):
    text = "\x1b[31m10%|#\r20%|##\r\x1b[0m" + RAISED + "ValueError: \u00e9\x1b[0m\n"
    path = tmp_path / "run.log"
    path.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert [one.message for one in excerpt_of([path]).errors] == ["ValueError: \u00e9"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("traceback : Signal 9 (SIGKILL) received by PID 1234", "SIGKILL"),
        ("  exitcode  : -9 (pid: 1234)", "exitcode : -9"),
        (f"  traceback : {RAISED.replace(chr(10), chr(10) + '  ')}ValueError: a", "/u/train.py:7"),
    ],
)
def test_the_end_of_torchruns_report_without_the_line_of_the_rank(tmp_path, text, wanted):
    assert wanted in flat(read(tmp_path, run=text))


def test_the_report_of_record_names_the_rank(tmp_path):
    text = "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n  traceback : "
    text += (RAISED + "ValueError: no label").replace("\n", "\n  ") + "\n-----\n"
    excerpt = read(tmp_path, run=text)
    assert excerpt.errors[0].ranks == (1,) and excerpt.exits[0].code == 1


def test_the_exit_code_and_the_json(user):
    (user.folder / "run.log").write_text("[rank1]: ValueError: no label\n")
    done = user.doctor("log run.log --json out.json")
    written = json.loads((user.folder / "out.json").read_text())
    assert done.returncode == written["exit"] == 1
    assert written["said"][0]["ranks"] == [1]
    (user.folder / "run.log").write_text("epoch 1 loss 0.5\n")
    assert user.doctor("log run.log").returncode == 0
    (user.folder / "run.log").write_text("\n\n")
    empty = user.doctor("log run.log")
    assert empty.returncode == 2 and empty.stderr.count("\n") == 1 and "no text" in empty.stderr


def test_standard_input_after_a_folder_leaves_the_files_of_the_folder(tmp_path):
    (tmp_path / "rank_0.log").write_text("epoch 0\n")
    command = [sys.executable, DOCTOR, "log", tmp_path, "-"]
    typed = b"[rank3]: ValueError: wrong \xff\n"
    done = subprocess.run(command, input=typed, capture_output=True, timeout=60)
    assert done.returncode == 1 and b"stdin:1, rank 3" in done.stdout
    assert len(list(tmp_path.iterdir())) == 1


def test_log_does_not_import_torch():
    code = "import sys, ddp_doctor.log; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=DOCTOR, timeout=60).returncode == 0


def test_the_table_is_in_step_with_the_pages():
    command = [sys.executable, "-m", "tools.messages_table", "--check"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0

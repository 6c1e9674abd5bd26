"""The command line: verbs, what is refused in one line, reports, exit codes."""

import re
import shutil
import sys
import zipapp

import pytest
from conftest import DOCTOR, TORCHRUN, keys
from ddp_doctor import __main__ as main
from ddp_doctor.check import report
from ddp_doctor.check.findings import FINDINGS, Finding

SCRIPTS = DOCTOR / "tests/scripts"
NO_SYNC = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(3):
    with model.no_sync():
        model(torch.rand(4, 2)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
RIGHT = NO_SYNC.replace("with model.no_sync():", "if True:")


def one_line(done, words):
    """Bad input: exit code 2, and one line that says what is wrong."""
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.count("\n") == 1 and words in done.stderr, done


def test_help_fits_on_a_screen(user):
    done = user.doctor("--help")
    assert done.returncode == 0
    for verb in ("check", "speed", "preflight", "log"):
        assert f" {verb} " in done.stdout
        text = user.doctor(f"{verb} --help").stdout
        assert text.count("\n") < 40 and f"ddp-doctor {verb}" in text
    assert user.doctor("").returncode == 2


@pytest.mark.parametrize(
    "line, meant",
    [
        ("torchrun --standalone train.py", "ddp-doctor check torchrun --standalone train.py"),
        ("--speed torchrun train.py", "ddp-doctor speed torchrun train.py"),
        ("--json a.json python train.py", "ddp-doctor check --json a.json python train.py"),
        ("checks torchrun train.py", "ddp-doctor check torchrun train.py"),
    ],
)
def test_a_command_without_a_verb_is_answered_with_the_one_that_was_meant(user, line, meant):
    one_line(user.doctor(line), f"a verb is missing: {meant}\n")


@pytest.mark.parametrize(
    "line, words",
    [
        ("check", "name a command"),
        ("check no-such-command", "no-such-command cannot be started: No such file"),
        ("check --ignore no-such-key python x.py", "there is no such finding"),
        ("check --alone no-such-file python x.py", "--alone no-such-file: no file that"),
        ("check torchrun --nproc-per-node 2 no-such.py", "no-such.py: there is no such file"),
        ("check python -m torch.distributed.run no-such.py", "there is no such file"),
        ("speed --short 1 python -c pass", "--short 1: at least 2 batches"),
        ("speed --limit soon python x.py", "argument --limit"),
        ("preflight --timeout 0", "from 1 to 600"),
        ("preflight --min-busbw 5", "start it with torchrun: RANK, WORLD_SIZE"),
        ("log no-such-file", "no-such-file: there is no such file"),
    ],
)
def test_bad_input_gives_one_line(user, line, words):
    one_line(user.doctor(line), words)


def test_the_version_names_the_versions_of_pytorch_that_were_tried(user):
    said = user.doctor("--version").stdout
    assert re.fullmatch(r"ddp-doctor \d+\.\d+, tried with PyTorch \d+\.\d+.*\n", said)


def test_all_findings_are_listed(user):
    said = user.doctor("check --list").stdout
    assert re.findall(r"^(\S+)$", said, re.MULTILINE) == list(FINDINGS)
    assert said.count("  Do: ") == said.count("  See: ") == len(FINDINGS)


def test_words_are_whole_sentences():
    for key, kind in FINDINGS.items():
        texts = [kind.do, kind.why]
        for change in kind.changes:
            texts += [change.what, change.do or "."]
        assert all(text.endswith(".") for text in texts), key
        assert set(kind.may_follow) <= set(FINDINGS), key


CHANGES = {  # by kind: the role and the line to change -> a term of what it is, one of the cure
    ("padded-evaluation", "", "accelerator.gather(x)"): ("gather()", "gather_for_metrics"),
    ("padded-evaluation", "", "DistributedSampler(data)"): ("sampler", "without padding"),
    ("padded-evaluation", "framework", "DataLoader(data)"): ("framework", "one rank"),
    ("padded-evaluation", "framework", "DistributedSampler(d)"): ("sampler", "without padding"),
    ("one-rank-communicates", "", "if rank == 0:"): ("condition", "every rank"),
    ("one-rank-communicates", "stop", "kl = loss.mean()"): ("value", "Reduce"),
    ("one-rank-communicates", "stop", "dist.reduce(kl, 0)"): ("one rank only", "all_reduce"),
    ("rates-differ", "", "scheduler.step(loss)"): ("different value", "Reduce"),
    ("rates-differ", "", "scheduler.step()"): ("step the schedule", "every rank"),
    ("last-pass-not-synced", "", "with f.no_backward_sync(m, enabled=x):"): ("condition", "last"),
    ("schedule-length", "step", "scheduler.step()"): ("advances", "once"),
    ("schedule-length", "", "steps = 4 * len(loader)"): ("number of steps", "one rank"),
    ("schedule-length", "prepared", "steps = len(loader)"): ("number of steps", "Accelerate"),
    ("weights-differ", "early", "if rank == 0:"): ("condition", "before DDP"),
    ("weights-differ", "", "if rank == 0:"): ("condition", "same way"),
    ("weights-differ", "state", "if rank == 0:"): ("state", "state of the optimizer"),
    ("weights-differ", "skip", "if loss > 9:"): ("step", "Reduce"),
    ("steps-differ", "skip", "if loss > 9:"): ("step", "Reduce"),
    ("steps-differ", "", "if rank == 0:"): ("condition", "all ranks"),
    ("one-rank-communicates", "tested", "if patience.over:"): ("Only some ranks", "all ranks"),
    ("saved-by-every-rank", "", "torch.save(state, path)"): ("save", "rank 0"),
    ("saved-by-every-rank", "results", "open(path, 'w')"): ("content", "Gather"),
    ("same-data", "", "DataLoader(data, 8)"): ("every rank", "DistributedSampler"),
    ("same-data", "weighted", "WeightedRandomSampler(w, 8)"): ("sampler", "weights"),
    ("same-data", "own", "return iter(order)"): ("sampler", "order[rank"),
    ("split-differs", "order", "names = list(set(words))"): ("class", "Sort"),
    ("same-data", "seed", "torch.manual_seed(3)"): ("same seed", "environment"),
    ("buffers-differ", "averaged", "for p in net.parameters():"): ("buffers", "Average"),
    ("buffers-differ", "made", "target = Net()"): ("made here", "once"),
    ("buffers-differ", "second", "copy = deepcopy(net)"): ("copied", "after DDP"),
    ("buffers-differ", "second", "if rank == 0:"): ("condition", "all ranks"),
    ("buffers-differ", "second", "mean.lerp_(p, 0.1)"): ("changed here", "once"),
}


@pytest.mark.parametrize("key, role, code", CHANGES)
def test_the_line_to_change_and_the_cure_are_said(key, role, code, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(f"{code}\n    pass\n" if code.endswith(":") else code)
    found = Finding(key, f"{file}:9", "It is seen", comes_from=f"{file}:1", role=role)
    what, do = CHANGES[key, role, code]
    assert what in report.change_of(found).what and do in report.do_of(found)


CURES = {  # by kind and role, where no line to change is known -> a term of the cure
    ("same-data", "no_loader"): "environments",
    ("buffers-differ", "second"): "once",
    ("buffers-differ", ""): "before the evaluation",
    ("same-data", "stream"): "number of ranks",
    ("weights-differ", "late"): "state of the optimizer",
    ("weights-differ", "early"): "before DDP",
    ("weights-differ", ""): "same weights",
    ("uneven-steps", ""): "Join",
}


@pytest.mark.parametrize("key, role", CURES)
def test_the_cure_fits_the_role_without_a_line_to_change(key, role):
    found = Finding(key, "train.py:9", "It is seen", role=role)
    assert report.change_of(found) is None
    assert CURES[key, role] in report.do_of(found)


def test_a_finding_says_which_other_one_may_be_its_cause(capsys):
    found = Finding("split-differs", "train.py:9", "It is seen")
    report.show_finding(found, {"split-differs", "file-race"})
    assert "[file-race]" in capsys.readouterr().out
    report.show_finding(found, {"split-differs"})
    assert "[file-race]" not in capsys.readouterr().out
    found = Finding("same-data", "train.py:9", "It is seen", may_follow=("same-random-numbers",))
    assert report.causes_of(found, {"same-random-numbers"}) == ["same-random-numbers"]


def test_a_zip_file_is_refused(user):
    zipapp.create_archive(
        DOCTOR, user.folder / "doctor.pyz", filter=lambda path: "tests" not in path.parts
    )
    one_line(user.run(sys.executable, "doctor.pyz", "check", "torchrun", "train.py"), "a zip file")


def test_without_ranks_nothing_is_said_to_be_right(user):
    done, said = user.check("python -c pass")
    assert done.returncode == 2 == said["exit"] and said["ranks"] == 0 and said["not_judged"]
    assert "nothing is wrong" not in done.stdout


HINTS = {
    "import os; os.environ['RANK']": "torchrun --standalone --nproc-per-node 2 train.py --epochs 2",
    "import sys; sys.exit(2)": "arguments",
}


@pytest.mark.parametrize("text", HINTS)
def test_one_line_says_what_to_do_if_there_is_no_rank(user, text):
    (user.folder / "train.py").write_text(text)
    done, said = user.check("python train.py --epochs 2")
    [hint] = said["hints"]
    assert done.returncode == 2 and HINTS[text] in hint and hint in done.stdout.splitlines()


@pytest.mark.slow
def test_arguments_that_are_missing_are_named(user):
    lines = ["import argparse, torch", "parser = argparse.ArgumentParser()"]
    lines += ["parser.add_argument('data')", "parser.parse_args()"]
    (user.folder / "train.py").write_text("\n".join(lines))
    done, said = user.check(f"{TORCHRUN} train.py")
    [hint] = said["hints"]
    assert done.returncode == 2 and "required: data" in hint, done


def test_short_without_a_number_leaves_the_command_as_it_is():
    parser = main.command_parser("check", "")
    for words, short in (("--short", 20), ("--short 7", 7), ("--json a --short", 20)):
        args = main.parse(parser, [*words.split(), "torchrun", "t.py", "--short", "3"])
        assert args.short == short and args.command == ["torchrun", "t.py", "--short", "3"]
    args = main.parse(parser, ["torchrun", "t.py", "--short"])
    assert args.short is None and args.command[-1] == "--short"


def test_a_mistake_is_named_with_its_line(user):
    (user.folder / "train.py").write_text(NO_SYNC)
    done, said = user.check(f"{TORCHRUN} train.py")
    assert done.returncode == 1 == said["exit"], done
    assert keys(said, "wrong") == {"last-pass-not-synced"}
    line = 1 + NO_SYNC.splitlines().index("    optimizer.step()")
    origin = 1 + NO_SYNC.splitlines().index("    with model.no_sync():")
    assert said["findings"][0]["at"] == f"train.py:{line}"
    assert said["findings"][0]["comes_from"] == f"train.py:{origin}"
    assert f"WRONG [last-pass-not-synced] shows at train.py:{line}" in done.stdout
    assert "no_sync()" in said["findings"][0]["do"]
    assert "1 certain (WRONG), 0 to judge" in done.stdout.splitlines()[-1]
    assert said["ranks"] == 2 and said["facts"]["steps"] == 3


@pytest.mark.slow
def test_what_is_meant_can_be_ignored(user):
    (user.folder / "train.py").write_text(NO_SYNC)
    done, said = user.check(f"{TORCHRUN} train.py", "--ignore last-pass-not-synced")
    assert done.returncode == 0 == said["exit"] and not said["findings"], done
    assert "last-pass-not-synced: left out by --ignore" in said["not_judged"]


@pytest.mark.slow
def test_one_rank_is_not_enough_and_its_facts_are_for_alone(user):
    (user.folder / "train.py").write_text(RIGHT)
    done, said = user.check(f"{TORCHRUN[:-1]}1 train.py")
    assert done.returncode == 2 and said["ranks"] == 1, done
    assert "what needs two ranks: there was one" in said["not_judged"]
    (user.folder / "found.json").rename(user.folder / "one.json")
    done, said = user.check(f"{TORCHRUN} train.py", "--alone one.json")
    assert done.returncode == 0 and keys(said) >= {"batch-grows"}, done


@pytest.mark.slow
def files(folder):
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def test_it_can_be_installed_alone_and_then_names_pages(user):
    ignored = shutil.ignore_patterns("tests", "__pycache__", ".*")
    shutil.copytree(DOCTOR, user.folder / "sources", ignore=ignored)
    before = files(user.folder / "sources")
    flags = ["-q", "--no-deps", "--no-build-isolation", "--target", "there", "./sources"]
    done = user.run(sys.executable, "-m", "pip", "install", *flags)
    assert done.returncode == 0, done
    assert files(user.folder / "sources") == before  # nothing that was built is left
    (user.folder / "train.py").write_text(NO_SYNC)
    command = [sys.executable, "there/bin/ddp-doctor", "check", *TORCHRUN.split(), "train.py"]
    done = user.run(*command, PYTHONPATH=str(user.folder / "there"))
    assert done.returncode == 1 and "WRONG [last-pass-not-synced]" in done.stdout, done
    assert "See: docs/training/gradient_accumulation.md in the repository" in done.stdout, done


# ------------------------------------------------------------------ how a run ends


JOIN = """
import os, signal, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
ENDS = {
    "raise": ("raise ValueError('no')", "rank 1 raised ValueError: no (train.py:6)"),
    "kill": ("os.kill(os.getpid(), 9)", "rank 1 ended without a word (killed?)"),
    "limit": ("while True: 1", "was stopped at the limit (--limit); 2 rank(s) seen"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ENDS)
def test_a_run_that_does_not_end_well_is_never_right(way, user):
    line, words = ENDS[way]
    (user.folder / "train.py").write_text(f"{JOIN}if dist.get_rank() == 1:\n    {line}\n")
    done, said = user.check(f"{TORCHRUN} train.py", "--limit 25" if way == "limit" else "")
    assert done.returncode == 2 and not keys(said, "wrong"), done
    assert words in said["facts"]["sentence"]


def test_an_error_before_the_group_is_named(user):
    (user.folder / "train.py").write_text("import torch\nraise ValueError('no')\n")
    (user.folder / "two.sh").write_text("RANK=0 WORLD_SIZE=1 python train.py || true\n")
    done, said = user.check("bash two.sh")
    assert said["command"]["code"] == 0 and done.returncode == 1, done
    assert keys(said) == {"raised-before-joining"}
    assert "raised ValueError: no (train.py:2)" in said["facts"]["sentence"]
    assert "nothing is wrong" not in done.stdout


@pytest.mark.slow
def test_a_rank_that_raises_makes_exit_code_2_whatever_the_command_returns(user):
    line = "if dist.get_rank() == 1:\n    raise ValueError('no')\n"
    (user.folder / "train.py").write_text(JOIN + line)
    (user.folder / "start.sh").write_text(f"{TORCHRUN} train.py || true\n")
    done, said = user.check("bash start.sh")
    assert said["command"]["code"] == 0 and done.returncode == 2 == said["exit"], done
    assert "nothing is wrong" not in done.stdout


@pytest.mark.slow
def test_a_hang_is_ended(user):
    (user.folder / "train.py").write_text(f"{JOIN}if dist.get_rank() == 1:\n    dist.barrier()\n")
    source = (user.folder / "train.py").read_text() + "dist.all_reduce(torch.ones(1))\n"
    (user.folder / "train.py").write_text(source)
    done, said = user.check(f"{TORCHRUN} train.py", "--patience 4", timeout=120)
    assert done.returncode == 1 or said["command"]["end"] == "hang", done
    assert "the doctor stops the run" in done.stderr and "Traceback" not in done.stderr
    assert keys(said) & {"crossed-order", "one-rank-communicates"}, done

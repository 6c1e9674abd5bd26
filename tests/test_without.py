"""04_ddp_torchrun/without.py: the script without one of its changes, and what its row says."""

import ast
import difflib
import importlib
import os
import signal

import pytest
from conftest import ranks_of, wait_for

script = importlib.import_module("04_ddp_torchrun.without")

SCRIPT = "04_ddp_torchrun/without.py"
TOP = [number for number in script.TITLES if number.isdigit()]  # the others are parts of these


def functions(text):
    """The code of each function of a script, without comments: {name: code}"""
    tree = ast.parse(text)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.unparse(function) for function in found}


@pytest.mark.parametrize("number", script.TITLES)
def test_only_lines_with_the_number_change(number):
    complete = script.PARALLEL.read_text().splitlines()
    plain = script.PLAIN.read_text().splitlines()
    text = script.without(number)
    compile(text, "minimal.py", "exec")
    dropped = (number, script.ALSO.get(number, number))
    carried = script.numbers_of(complete)
    matcher = difflib.SequenceMatcher(None, complete, text.splitlines(), autojunk=False)
    changes = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    assert changes
    for _, start, end, new_start, new_end in changes:
        # A line that only loses its "if" is indented differently.
        for position in range(start, end):
            assert carried[position].startswith(dropped), complete[position]
        for line in text.splitlines()[new_start:new_end]:
            assert line in plain


def test_without_all_changes_it_is_stage_1():
    plain = functions(script.PLAIN.read_text())
    reduced = functions(script.without(*TOP))
    main = reduced["main"].replace("    args = parse_args()\n", "")
    assert main.replace("train(device, rank, world_size)", "train(device)") == plain["main"]
    train = reduced["train"].replace("train(device, rank, world_size)", "train(device)")
    assert train == plain["train"]
    assert reduced["load_mnist"] == plain["load_mnist"]


def test_each_number_of_the_script_is_there():
    carried = set(script.numbers_of(script.PARALLEL.read_text().splitlines()))
    assert carried - {""} <= script.TITLES.keys()
    assert script.REASONS.keys() == script.TITLES.keys()


def test_an_unknown_number_is_refused(called):
    result = called(SCRIPT, "12")
    assert (result.code, result.out) == (2, "") and "6a" in result.err
    assert called(SCRIPT).code == 2


def test_what_a_row_says(tmp_path):
    facts = {"steps": 80, "samples": 240}
    printed = ["epoch 1: 8 of 10 test images correct"]
    complete = script.Run(printed, 0, "", facts, [], tmp_path)

    def row(**differing):
        return script.compare(complete, complete._replace(**differing))

    def count(correct):
        return [f"epoch 1: {correct} of 10 test images correct"]

    assert row()[1] == "nobody"
    assert row(code=None)[1] == "a hang"
    assert row(code=1, error="KeyError")[1] == "an error"
    assert row(printed=printed * 2)[1] == "who reads the output"
    assert row(printed=count(16))[1] == row(printed=count(4))[1] == "the printed count"
    assert "different" in row(printed=count(9))[0]
    assert "80 steps of 2 x 240 images" in row(facts={"steps": 80, "samples": 480})[0]
    assert "same-order" in row(findings=[{"key": "same-order"}])[1]


def test_the_first_images_are_copied(tmp_path, small_data):
    raw = small_data / "MNIST" / "raw"
    script.copy_first(5, raw / "t10k-labels-idx1-ubyte", tmp_path, header=8, size=1)
    content = (tmp_path / "t10k-labels-idx1-ubyte").read_bytes()
    assert content[:8] == bytes([0, 0, 8, 1, 0, 0, 0, 5])
    assert content[8:] == (raw / "t10k-labels-idx1-ubyte").read_bytes()[8:13]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, row",
    [
        ("3", ["Default process group has not been initialized", "exit code 1"]),
        ("4", ["prints the same", "file-race"]),
        ("6a", ["evaluation-repeated"]),
        ("8", ["same-order"]),
    ],
)
def test_a_run_gives_what_its_row_says(reader, number, row):
    result = reader.run(f"python {SCRIPT} {number}", timeout=280)
    assert result.code == 0, result
    printed = " ".join(result.out.split())
    for words in row:
        assert words in printed, result


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(reader):
    process = reader.start(f"python {SCRIPT} 8")
    wait_for(lambda: len(ranks_of(process, "without.py")) == 4)  # the doctor, torchrun, two ranks
    os.kill(process.pid, signal.SIGINT)
    result = reader.finish(process)  # It fails if a process is left behind.
    assert result.code == 130 and "interrupted" in result.err

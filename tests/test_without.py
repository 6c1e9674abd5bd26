"""04_ddp_torchrun/without.py: the script without one of its changes, and what its row says."""

import ast
import difflib
import importlib
import os
import signal

import pytest
from conftest import ROOT, anchor, ranks_of, wait_for

script = importlib.import_module("04_ddp_torchrun.without")

SCRIPT = "04_ddp_torchrun/without.py"
TOP = [number for number in script.CHANGES if number.isdigit()]  # the others are parts of these


def functions(text):
    """The code of each function of a script, without comments: {name: code}"""
    tree = ast.parse(text)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.unparse(function) for function in found}


@pytest.mark.parametrize("number", script.CHANGES)
def test_only_lines_with_the_number_change(number):
    complete = script.PARALLEL.read_text().splitlines()
    plain = script.PLAIN.read_text().splitlines()
    text = script.without(number)
    compile(text, "minimal.py", "exec")
    dropped = tuple(filter(None, (number, script.CHANGES[number].also)))
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
    assert carried - {""} <= script.CHANGES.keys()


@pytest.mark.parametrize("number", script.CHANGES)
def test_the_page_is_there(number):
    path, _, heading = script.CHANGES[number].page.partition("#")
    lines = (ROOT / path).read_text().splitlines()
    headings = [anchor(line.lstrip("# ")) for line in lines if line.startswith("#")]
    assert not heading or heading in headings


def test_an_unknown_number_gives_one_line(called):
    result = called(SCRIPT, "12")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("there is no change 12: choose one of 1, 1b, 2, ")
    assert result.err.count("\n") == 1
    assert called(SCRIPT).code == 2


def test_list_and_show(called):
    listed = called(SCRIPT, "--list").out.splitlines()
    assert [line.split()[0] for line in listed] == list(script.CHANGES)
    shown = called(SCRIPT, "--show 6b").out.splitlines()
    assert len(shown) == 2 and "dist.all_reduce(correct)" in shown[1]


def test_who_notices():
    counted = "test images in the printed count"
    complete = script.Run(["epoch 0: 9 of 10"], 0, "", {counted: "10"}, [])
    assert script.who_notices(complete, complete) == "nobody"
    hang = complete._replace(code=None)
    assert script.who_notices(complete, hang) == "a hang"
    assert "hangs" in script.what_one_sees(script.CHANGES["3"], complete, hang)
    assert script.who_notices(complete, complete._replace(code=1)) == "an error"
    half = complete._replace(numbers={counted: "5"})
    assert script.who_notices(complete, half) == "the printed count"
    twice = complete._replace(printed=complete.printed * 2)
    assert script.who_notices(complete, twice) == "who reads the output"
    found = complete._replace(findings=["WRONG [same-order] minimal.py:60"])
    assert script.who_notices(complete, found) == "only the doctor"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, row",
    [
        ("3", ["error", "Default process group has not been initialized", "exit code 1"]),
        ("6b", ["test images in the printed count are 152 instead of 303", "part-of-evaluation"]),
        (
            "8",
            ["first images of rank 0 in the two epochs are [", "same-order", "prints other counts"],
        ),
    ],
)
def test_a_run_gives_what_its_row_says(reader, number, row):
    result = reader.run(f"python {SCRIPT} {number} --seeds 1", timeout=280)
    assert result.code == 0, result
    printed = " ".join(result.out.split())
    for words in row:
        assert words in printed, result


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(reader):
    process = reader.start(f"python {SCRIPT} 8 --seeds 1")
    wait_for(lambda: len(ranks_of(process, "without.py")) == 4)  # the doctor, torchrun, two ranks
    os.kill(process.pid, signal.SIGINT)
    result = reader.finish(process)  # It fails if a process is left behind.
    assert result.code == 130 and "interrupted" in result.err

"""04_ddp_torchrun/rank_zero.py: rank 0 logs and decides; without a broadcast the ranks wait."""

import pytest

SCRIPT = "04_ddp_torchrun/rank_zero.py"
TORCHRUN = f"torchrun --standalone --nproc-per-node 2 {SCRIPT} -b 24"


def test_rank_0_stops_all_ranks_at_the_target(reader):
    result = reader.run(f"{TORCHRUN} --epochs 9 --target 0.3 --tensorboard runs")
    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if line.startswith("epoch")]
    accuracies = [float(line.split()[-1].rstrip("%")) / 100 for line in lines]
    assert accuracies[-1] >= 0.3 > max([0.0, *accuracies[:-1]])
    assert f"done after {len(lines)} epoch(s)" in result.out and len(lines) < 9
    tensorboard_and_text_log(reader.folder / "runs", lines)


def tensorboard_and_text_log(folder, lines):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert (folder / "log.txt").read_text().splitlines() == lines
    events = EventAccumulator(str(folder)).Reload()
    for name, word in (("loss/train", 3), ("accuracy/test", 5)):
        written = [event.value for event in events.Scalars(name)]
        printed = [line.split()[word] for line in lines]
        shown = [f"{x:.2%}" if "%" in p else f"{x:.4f}" for x, p in zip(written, printed)]
        assert shown == printed


@pytest.mark.slow
def test_a_decision_of_rank_0_alone_leaves_all_ranks_waiting(reader):
    result = reader.run(f"{TORCHRUN} --epochs 9 --target 0.1 --alone --timeout 5")
    assert result.code == 1 and "done after" not in result.out, result
    assert "5000ms" in result.err or "Connection closed" in result.err, result


def test_tensorboard_is_not_imported_without_the_flag(reader):
    code = f"import sys, runpy; runpy.run_path('{SCRIPT}'); "
    code += "print('torch.utils.tensorboard' in sys.modules)"
    result = reader.run(f'python -c "{code}"')
    assert result.out.strip() == "False", result


def test_started_with_plain_python_it_says_how_to_start(reader):
    result = reader.run(f"python {SCRIPT}")
    assert result.code != 0 and "torchrun" in result.err and result.err.count("\n") == 1, result

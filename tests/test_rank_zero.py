"""04_ddp_torchrun/rank_zero.py: rank 0 logs and decides; without a broadcast the ranks wait."""

import pytest
from ranks import torchrun

SCRIPT = "04_ddp_torchrun/rank_zero.py"
TORCHRUN = f"torchrun --standalone --nproc-per-node 2 {SCRIPT} -b 24"


def test_rank_0_stops_all_ranks_at_the_target(reader):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = "-b 24 --epochs 9 --target 0.6 --tensorboard runs"
    result = torchrun(reader, 2, SCRIPT, *flags.split())
    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if line.startswith("epoch")]
    losses, accuracies = ([line.split()[word] for line in lines] for word in (3, 5))
    reached = [float(percent.rstrip("%")) >= 60 for percent in accuracies]
    assert reached == [False] * (len(lines) - 1) + [True] and 1 < len(lines) < 9
    assert (reader.folder / "runs/log.txt").read_text().splitlines() == lines
    events = EventAccumulator(str(reader.folder / "runs")).Reload()
    assert [f"{event.value:.4f}" for event in events.Scalars("loss/train")] == losses
    assert [f"{event.value:.2%}" for event in events.Scalars("accuracy/test")] == accuracies


@pytest.mark.slow
def test_a_decision_of_rank_0_alone_leaves_all_ranks_waiting(reader):
    result = reader.run(f"{TORCHRUN} --epochs 9 --target 0.1 --alone --timeout 5")
    assert result.code == 1 and "done after" not in result.out, result
    assert "5000ms" in result.err or "Connection closed" in result.err, result

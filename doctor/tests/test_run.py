"""What belongs together in a run."""

from ddp_doctor.run.events import Joined, Moment
from ddp_doctor.run.run import build


def joined(time, rank, world):
    return (Joined(Moment(time, step=0, passes=0), "train.py:1", rank, world),)


def test_ranks_that_were_started_together_belong_together():
    """A script calls mp.spawn three times, with two, two and one ranks."""
    starts = [(1.0, 0, 2), (1.1, 1, 2), (5.1, 0, 2), (5.0, 1, 2), (9.0, 0, 1)]
    run = build(0, "ended", [joined(*start) for start in reversed(starts)])
    assert [rank.events[0].when.time for rank in run.ranks] == [5.1, 5.0]
    assert run.others == 3

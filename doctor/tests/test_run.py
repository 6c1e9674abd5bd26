"""What belongs together in a run."""

from ddp_doctor.run.events import Joined, Moment, Parameters, Step
from ddp_doctor.run.facts import facts
from ddp_doctor.run.run import build


def joined(time, rank, world):
    return (Joined(Moment(time, step=0, passes=0), "train.py:1", rank, world),)


def test_ranks_that_were_started_together_belong_together():
    """A script calls mp.spawn three times, with two, two and one ranks."""
    starts = [(1.0, 0, 2), (1.1, 1, 2), (5.1, 0, 2), (5.0, 1, 2), (9.0, 0, 1)]
    run = build(0, "ended", [joined(*start) for start in reversed(starts)])
    assert [rank.events[0].when.time for rank in run.ranks] == [5.1, 5.0]
    assert run.others == 3


def step(optimizer, n, rate):
    moment = Moment(1.0 + n, step=n, passes=0)
    about = {"at": "train.py:9", "closure": False, "finite": True, "gradients": [], "weights": []}
    more = {"sums": [], "random": {}, "graphs": 0, "memory": 0}
    return Step(moment, optimizer=optimizer, n=n, rates=[rate], **about, **more)


def test_a_step_past_add_param_group_keeps_its_number():
    processes = []
    for rank in range(2):
        events = [*joined(0.0, rank, 2)]
        moment = Moment(0.5, 0, 0)
        events.append(Parameters(moment, 0, [3], [True], True))
        events.append(Parameters(moment, 1, [3, 4], [True, False], True, before=20))
        processes.append((*events, step(0, 19, 0.1), step(1, 0, 0.1)))
    run = build(0, "ended", processes)
    assert [optimizer.rows[0].count for optimizer in run.optimizers] == [20, 21]


def test_the_rates_of_two_optimizers_are_told_apart():
    """The second one has the larger rate."""
    processes = []
    for rank in range(2):
        events = [*joined(0.0, rank, 2)]
        for optimizer, size in ((0, 3), (1, 4)):
            events.append(Parameters(Moment(0.5, 0, 0), optimizer, [size], [True], True))
        for n in range(2):
            events += [step(0, n, 0.01), step(1, n, 0.5)]
        processes.append(tuple(events))
    run = build(0, "ended", processes)
    assert facts(run)["rates"] == [0.01, 0.5]

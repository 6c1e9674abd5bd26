"""The statements on docs/corrections.md: each row is computed here."""

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
import two_ranks
from conftest import ROOT
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tools import records as compare

PAGE = (ROOT / "docs/corrections.md").read_text()


@pytest.fixture(scope="module", params=[pytest.param("two ranks", marks=pytest.mark.slow)])
def found(tmp_path_factory):
    """{experiment: {rank: what it found}}: both ranks do all experiments, one after the other."""
    context = mp.get_context("spawn")
    results = context.Queue()
    file = str(tmp_path_factory.mktemp("ranks") / "store")
    ranks = [
        context.Process(target=two_ranks.run, args=(rank, file, results), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    table = {name: {} for name in two_ranks.EXPERIMENTS}
    try:
        for _ in range(2 * len(table) - 1):  # rank 1 does not survive the last one
            rank, name, value = results.get(timeout=120)
            table[name][rank] = value
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return table


def test_a_test_on_rank_0_alone_is_what_waits(found):
    assert found["all_ranks_test"] == {rank: ("passed", [9, 10]) for rank in range(2)}
    assert "Timed out" in found["only_rank_0_tests"][0]


def test_the_wrapper_communicates_in_forward_the_bare_model_does_not(found):
    bare, wrapper = found["only_rank_0_calls_the_wrapper"][0]
    assert bare == "passed" and wrapper != "passed"


def test_ddp_broadcasts_the_weights_of_rank_0_whatever_the_seeds(found):
    (mine, after), (other, after_other) = found["seeds"][0], found["seeds"][1]
    assert mine != other and after == after_other == mine


def test_ddp_averages_gradients(found):
    for by_rank in (found["gradients"][0], found["gradients"][1]):
        assert by_rank["mean"] == pytest.approx(by_rank["whole"], rel=1e-12)
        assert [2 * g for g in by_rank["sum"]] == pytest.approx(by_rank["whole, sum"], rel=1e-12)
        assert by_rank["uneven"] != pytest.approx(by_rank["whole"], rel=1e-2)
        assert by_rank["uneven, weighted"] == pytest.approx(by_rank["whole"], rel=1e-12)


def test_the_step_of_the_optimizer_does_not_communicate(found):
    assert found["only_rank_0_steps"][0] == found["only_rank_0_steps"][1], "equal before the step"
    assert len(found["only_rank_0_steps"]) == 2, "and rank 0 could step alone"


def test_the_same_rate_for_the_same_batch(found):
    assert max(found["same_rate"].values()) < 1e-14


def test_no_sync_has_to_cover_the_forward_pass(found):
    first, second = found["no_sync"][0], found["no_sync"][1]
    assert first["forward and backward"] != second["forward and backward"], "not averaged"
    assert first["backward only"] == second["backward only"], "averaged all the same"


def test_a_second_backward_of_one_forward_is_not_averaged(found):
    first, second = found["two_losses"][0], found["two_losses"][1]
    assert first["one_forward"] != second["one_forward"], "the ranks drift apart"
    assert first["forwards_first"] != second["forwards_first"]
    assert first["in_turn"] == second["in_turn"]
    assert first["in_turn"] == pytest.approx(first["sum_of_losses"], rel=1e-12)


def test_an_all_reduce_needs_no_barrier(found):
    assert found["without_a_barrier"] == {0: 3.0, 1: 3.0}


def test_reduce_leaves_the_sum_on_one_rank(found):
    assert found["reduce"][0] == 3.0 and found["reduce"][1] != 3.0


def test_collectives_in_another_order_may_end_with_wrong_numbers(found):
    assert found["another_order"] == {0: (11.0, 11.0), 1: (11.0, 11.0)}


def test_the_buckets_of_the_first_step_are_not_those_of_the_others(found):
    for by_rank in (found["buckets"][0], found["buckets"][1]):
        assert by_rank["default"] == ([6.0], [1.0, 5.0])
        assert by_rank["bucket_cap_mb=25"] == ([6.0], [6.0])


def test_buckets_are_not_rebuilt_where_unused_parameters_are_looked_for(found):
    assert found["unused_parameters"][0] == {False: 1, True: 0}


def test_the_statistics_of_batchnorm_are_those_of_rank_0(found):
    assert found["batchnorm"] == {0: (0.0, 0.0), 1: (10.0, 0.0)}, "the mean of all data is 5"


def test_the_scalers_of_all_ranks_skip_the_same_step(found):
    first, second = found["scalers"][0], found["scalers"][1]
    assert first == second
    assert [scale for scale, _ in first] == [4.0, 4.0] and first[0][1] != first[1][1]


def test_a_rank_that_dies_is_noticed_before_the_timeout(found):
    assert found["a_rank_dies"][0] != "passed" and "Timed out" not in found["a_rank_dies"][0]


def test_averages_of_averages():
    correct, size = [5, 2], [6, 4]  # on two ranks
    means = statistics.mean(c / n for c, n in zip(correct, size))
    assert (f"{means:.3f}", f"{sum(correct) / sum(size):.3f}") == ("0.667", "0.700")
    assert "0.667" in PAGE and "0.700" in PAGE


def test_a_shard_is_not_a_block():
    shards = [list(DistributedSampler(range(8), 2, rank, shuffle=False)) for rank in range(2)]
    assert shards == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_what_fp16_loses():
    least = 2.0**-25  # half the smallest number that fp16 has
    assert torch.tensor([least, 1.001 * least]).half().tolist() == [0.0, 2.0**-24]
    assert f"{least:.1e}" == "3.0e-08" and f"{2.0**-24:.1e}" == "6.0e-08"


class Seeds(Dataset):
    """What a loader worker draws: its seed, and a number of random and numpy."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        import numpy

        return torch.initial_seed(), random.random(), numpy.random.rand()


@pytest.mark.skipif(sys.platform != "linux", reason="forks its workers")
@pytest.mark.parametrize("persistent", [True, False])
def test_seeds_of_workers(persistent):
    loader = DataLoader(
        Seeds(), num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    first, second = ([tuple(n.item() for n in row) for row in loader] for _ in range(2))
    assert ([row[0] for row in first] == [row[0] for row in second]) == persistent
    assert len({row[1] for row in first}) == len({row[2] for row in first}) == 2, "all three seeded"


@pytest.mark.skipif(sys.platform != "linux", reason="forks its workers")
@pytest.mark.parametrize("persistent", [True, False])
def test_a_seed_set_anew_does_not_reach_persistent_workers(persistent):
    loader = DataLoader(
        Seeds(), num_workers=1, persistent_workers=persistent, multiprocessing_context="fork"
    )
    numbers = []
    for _ in range(2):
        torch.manual_seed(5)
        numbers.append([row[1].item() for row in loader])
    assert (numbers[0] == numbers[1]) != persistent


def test_seconds_of_ranks_are_not_added_up():
    rows = compare.read_folder(ROOT / "docs/timings/cpu-2-cores")
    for run in rows["03_ddp_spawn-2xcpu"]:
        seconds = [sum(rank.values()) for rank in run["history"][-1]["phases"]]
        speed, by_sum = run["images"] / max(seconds), run["images"] / sum(seconds)
        assert speed / by_sum == pytest.approx(2, rel=0.03)


def test_the_figures_of_the_demo():
    steps = [3 * len(DataLoader(DistributedSampler(range(60_000), n, 0), 32)) for n in (1, 2)]
    assert steps == [5625, 2814]
    measured = json.loads((ROOT / "benchmarks/results/single_process.json").read_text())["ways"]
    for way in (
        "demo: images through PIL, 32 per step, SGD at 1e-4",
        "64 per step, as on two ranks of 32",
    ):
        assert f"{100 * measured[way]['accuracy']:.2f} %" in PAGE
    assert "5,625" in PAGE and "2,814" in PAGE


def launched(*command, **env):
    """-> what a launcher and its ranks print on stdout, and the launcher's stderr"""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | env
    result = subprocess.run(
        [sys.executable, "-m", *command], env=env, capture_output=True, text=True, timeout=120
    )
    return result.stdout, result.stderr


@pytest.mark.slow
def test_threads_that_torchrun_sets():
    show = ["--no-python", "sh", "-c", "echo threads:$OMP_NUM_THREADS:"]
    for ranks, expected in ((1, ["threads::"]), (2, ["threads:1:"] * 2)):
        out, err = launched(
            "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *show
        )
        assert re.findall(r"threads:.*", out) == expected, err


@pytest.mark.slow
def test_detail_crashes_ddp_on_gloo(tmp_path):
    script = tmp_path / "wrap.py"
    script.write_text(
        "import torch, torch.distributed as dist, torch.distributed.nn\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
        "DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    )
    env = os.environ | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    result = subprocess.run([sys.executable, script], env=env, capture_output=True, timeout=120)
    assert result.returncode == -signal.SIGSEGV, result


def test_the_old_launcher_passes_a_flag(tmp_path):
    script = tmp_path / "old.py"
    script.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int)\nparser.parse_args()\n"
    )
    _, err = launched("torch.distributed.launch", "--nproc-per-node=1", str(script))
    assert "unrecognized arguments: --local-rank=0" in err and "FutureWarning" in err


def test_every_row_names_a_test_that_is_there():
    tests = set(
        re.findall(r"^def (test_\w+)", (ROOT / "tests/test_corrections.py").read_text(), re.M)
    )
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named and named <= tests
    assert tests - named == {"test_every_row_names_a_test_that_is_there"}

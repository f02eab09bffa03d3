"""Loops as real programs have them, alone and on two processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
Results = list[dict[str, Any]]


def run_loops(file: str, learners: int, root: Path, folder: Path) -> Results:
    """Return what the loops of a file return on each learner."""
    words = [str(root / "tests" / "support" / file), str(folder)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(learners)]
    done = subprocess.run(
        [sys.executable, *(launcher if learners > 1 else []), *words], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(learners)]


@pytest.fixture(scope="module", params=[1, 2])
def results(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_loops("real_loops.py", request.param, root, tmp_path_factory.mktemp("loops"))


@pytest.fixture(scope="module", params=[1, 2])
def more(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_loops("more_real_loops.py", request.param, root, tmp_path_factory.mktemp("more"))


def each(results: Results, name: str) -> list[Any]:
    return [result[name] for result in results]


def test_schedulers(results: Results) -> None:
    assert each(results, "schedulers_made_before_and_after") == [pytest.approx(0.1 * 0.5**4)] * len(results)
    assert max(each(results, "one_cycle_by_batch")) < 1e-5, "the schedule goes all of its way"
    assert max(each(results, "follow_without_a_common_pace")) < 0.02


def test_steps(results: Results) -> None:
    for result in results:
        assert result["zero_grad_at_the_end"]
        assert result["closure"] == [True, True, True]
        assert result["clipping_sees_the_mean_gradient"] < 1e-6
        assert result["accumulation"] < 1e-6
        assert result["grad_scaler"] == [[True, True], [True, True]]
        assert result["easgd_with_fewer_steps_than_its_period"]


def test_edits_of_weights(results: Results) -> None:
    first = results[0]
    for result in results:
        *exact, asynchronous = result["clamped_weights"]
        assert max(exact) < 0.0101
        assert asynchronous < 0.05, "unclamped it is 0.5"
        assert result["a_checkpoint_loaded_after_join"] == [[7.0, 7.0]] * 4
        assert result["a_layer_unfrozen_after_join"] == [True, True, first["a_layer_unfrozen_after_join"][2]]
        assert result["tensors_assigned_in_the_forward_pass"][0] == 40 / len(results)


def test_loaders(results: Results) -> None:
    learners = len(results)
    for result in results:
        assert not result["workers_of_the_loader"][1], "workers load, not the training process"
        assert result["a_sampler_of_batches"] == 20 / learners
        assert result["evaluation_in_mid_epoch"] == 40 / learners
        assert result["collectives_of_its_own"] == [learners, 41 // learners]
    seen = itertools.chain.from_iterable(indices for indices, _ in each(results, "workers_of_the_loader"))
    assert sorted(seen) == list(range(40))
    assert sorted(itertools.chain.from_iterable(each(results, "a_sampler_that_shards"))) == list(range(80))


def test_all_learners_end_with_the_consensus(results: Results) -> None:
    for name in ("tensors_assigned_in_the_forward_pass", "two_models", "without_share"):
        assert all(one == results[0][name] for one in each(results, name)), name
    for k in range(4):
        counts = [breaks[k][0] for breaks in each(results, "a_learner_that_breaks")]
        assert counts[0] == 3
        assert min(counts[1:], default=20) >= 20
        assert len({json.dumps(breaks[k][1]) for breaks in each(results, "a_learner_that_breaks")}) == 1


EQUAL = (
    "moving_average_swapped_in", "averaged_model_of_torch", "after_the_end", "weights_by_frames", "tied_weights",
    "weight_norm", "batch_norm", "half_precision", "half_precision_weights", "accumulation_with_a_remainder",
    "resumed_from_its_own_checkpoint", "two_optimizers_of_one_model", "an_endless_loader",
    "a_state_that_the_loop_carries", "a_learner_that_never_steps",
)  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_what_all_learners_have_in_common(more: Results, name: str) -> None:
    assert all(one == more[0][name] for one in each(more, name))


def test_rates_and_servers(more: Results) -> None:
    for rank, result in enumerate(more):
        assert result["the_rate_by_hand"] == [[True, True]] * 4
        assert result["every_rank_trains"] == [[rank, True, True]] * 3


def test_what_a_plain_loop_keeps(more: Results) -> None:
    for result in more:
        assert result["moving_average_swapped_in"][0], "what was swapped in and out is no edit"
        assert result["after_the_end"][:5] == [True] * 5
        assert result["tied_weights"][0]
        assert [finite for _, finite in result["weight_norm"]] == [True, True]
        assert result["a_parameter_without_a_gradient"] == [True, True]
        assert result["resumed_from_its_own_checkpoint"][0] < 1e-6
        trained, before = result["half_precision_weights"]
        assert trained != before


def test_blocks_in_frames(more: Results) -> None:
    """60 frames are three full minibatches of 20; all have 10, so that their weights are equal."""
    (bmuf, same, averaging, also), line = more[0]["weights_by_frames"]
    assert bmuf == pytest.approx(same, abs=1e-6)
    assert averaging == pytest.approx(also, abs=1e-6)
    assert line == "join: strategy.block_frames is in frames; say how many a full minibatch has, by minibatch_frames="


def test_fewer_minibatches_than_learners(more: Results) -> None:
    for k in range(4):
        assert sum(result["fewer_minibatches_than_learners"][k][0] for result in more) == 2
        assert len({json.dumps(result["fewer_minibatches_than_learners"][k][1]) for result in more}) == 1


def test_all_settings_of_a_loader(more: Results) -> None:
    for epoch in range(2):
        seen = sorted(itertools.chain.from_iterable(result["all_settings_of_a_loader"][epoch] for result in more))
        assert len(seen) == len(set(seen)) == 80, "the last two samples are dropped"


def test_an_exception_that_the_loop_catches(more: Results) -> None:
    caught = [result["an_exception_caught_in_the_body"] for result in more]
    assert sum(count for count, _ in caught) == 1
    assert all(vector == caught[0][1] for _, vector in caught)


REFUSALS = [
    "join: LBFGS evaluates the loss several times a step",
    "join: 1 is a SyncBatchNorm, whose forward pass waits for all learners",
    "join: the optimizer has none of the model's parameters",
    "join: 0.weight is trained by another optimizer that was joined",
    "a gradient is sparse, which no strategy can average",
    "0.weight is no longer the tensor that the optimizer trains",
]


def test_what_cannot_be_right_is_named_in_one_line(more: Results) -> None:
    alone = len(more) == 1
    for rank, result in enumerate(more):
        for line, begins in zip(result["refusals"], REFUSALS, strict=True):
            assert line.startswith(begins) or (alone and line == "" and "SyncBatchNorm" in begins)
            assert "\n" not in line
        assert result["another_type_after_join"].startswith("0.weight was torch.float32 on cpu and is torch.float64")
        stopped = result["early_stopping_on_the_first_rank"]
        does = [
            "learner 0 closes its learner, and another learner begins a loop",
            "learner 1 begins a loop, and another",
        ]
        assert stopped.startswith("" if alone else does[rank])
        assert bool(stopped) == (not alone)
    differ = each(more, "backward_passes_that_differ")  # one that comes before the other's step is taken part in
    assert not any(differ) or "calls backward() again, and another learner has taken this step" in differ[0]
    entered = each(more, "consensus_on_the_first_rank_only")
    assert all((line == "") == alone for line in entered)
    assert alone or "another learner goes on with its next step" in entered[0]

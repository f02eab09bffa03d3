"""Any task object on a simulated cluster, without settings and without a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from own_model import HELD_OUT, LOADER, LOSS, error, make_model
from roundelay.errors import SettingsError
from roundelay.own_models.simulated_run import simulate
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import Averaging, Synchronous
from roundelay.tasks.tiny import Tiny
from tiny_jobs import sgd

TASK = Tiny(frames_per_epoch=320, batch=16, hidden=[8], classes=5, features=6)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_the_same_call_gives_the_same_model() -> None:
    one, two = (simulate(TASK, Averaging(period=2), learners=3, minibatches=30, seed=4) for _ in range(2))
    assert torch.equal(weights(one.model), weights(two.model))
    assert (one.scores, one.seconds) == (two.scores, two.seconds)


def test_evaluations_come_as_often_as_asked() -> None:
    made = simulate(TASK, Synchronous(), learners=2, minibatches=40, evaluate_every=10)
    assert [evaluation.minibatch for evaluation in made.evaluations] == [10, 20, 30, 40]
    assert made.evaluations[-1].scores == made.scores
    assert {evaluation.clock for evaluation in made.evaluations} == {"virtual"}


def test_virtual_time_is_the_clusters() -> None:
    cluster = Cluster(compute=Compute(seconds=2.0))
    made = simulate(TASK, Synchronous(), learners=2, minibatches=20, cluster=cluster)
    assert made.seconds == pytest.approx(10 * 2.0, rel=0.01)
    assert made.totals["learner 1"]["compute"] == pytest.approx(20.0)


def test_epochs_or_minibatches_are_the_budget() -> None:
    by_epochs = simulate(TASK, Synchronous(), epochs=1.5)
    assert by_epochs.evaluations[-1].minibatch == round(1.5 * TASK.minibatches_per_epoch)


def test_the_optimizer_is_the_callers() -> None:
    still = simulate(TASK, Synchronous(), minibatches=10, optimizer=sgd(0.0))
    assert torch.equal(weights(still.model), weights(TASK.make_module()))


def test_a_strategy_that_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="period must be at least 1"):
        simulate(TASK, Averaging(period=0), learners=2)


def test_a_users_own_model_has_the_same_bits_again_and_a_folder(tmp_path: Path) -> None:
    one, two = (
        simulate(make_model, LOADER, LOSS, "adpsgd", learners=4, held_out=HELD_OUT, evaluate=error, out=tmp_path / name)
        for name in ("one", "two")
    )
    assert torch.equal(weights(one.model), weights(two.model))
    assert (one.scores, one.seconds) == (two.scores, two.seconds)
    assert one.report().exists()
    assert one.plan(learners=[2], target="error=0.9", strategies=["adpsgd"]).rankings[0].rows


def test_the_callers_generators_stay_as_they_were() -> None:
    before = torch.get_rng_state()
    simulate(make_model, LOADER, LOSS, "synchronous", learners=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_rule_is_that_of_the_given_strategy() -> None:
    class Mine(Averaging):
        """A strategy of a program."""

    by_object = simulate(make_model, LOADER, LOSS, Averaging(period=2), learners=2, minibatches=20)
    by_name = simulate(make_model, LOADER, LOSS, {"name": "averaging", "period": 2}, learners=2, minibatches=20)
    assert by_object.rule.startswith("averaging with 2 learners: rate x 2")
    assert by_object.rule == by_name.rule
    assert torch.equal(weights(by_object.model), weights(by_name.model))
    assert simulate(make_model, LOADER, LOSS, Mine(period=2), learners=2).rule.startswith("no default rule for Mine")

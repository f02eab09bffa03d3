"""An experiment's settings: what they make of a task, an optimizer and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundelay import config
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment, assign
from roundelay.strategies import STRATEGIES


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategys_settings_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    experiment = Experiment(task={"name": "tiny"}, strategy=STRATEGIES[name](), learners=4)
    path = tmp_path / "settings.toml"
    path.write_text(config.dump(experiment), encoding="utf-8")
    again = Experiment.read(path)
    assert again.strategy == experiment.strategy
    assert again.plain() == experiment.plain()


def test_batch_sizes_and_budgets() -> None:
    def made(**more: object) -> Experiment:
        return config.build(Experiment, {"task": {"name": "tiny"}} | more, "x.toml")

    assert made(batch={"size": 8}).job().task.nominal_frames == 8
    assert made(batch={"total": 64}, learners=4).job().task.nominal_frames == 16
    assert made(budget={"epochs": 0.5}).job().budget.total == 100
    assert made(budget={"minibatches": 7}).job().budget.total == 7
    assert made(budget={"shards": "private"}, learners=3).job().budget.shards == 3
    with pytest.raises(SettingsError, match="batch.total = 10 does not divide by learners = 4"):
        made(batch={"total": 10}, learners=4).job()
    with pytest.raises(SettingsError, match="batch: size and total are both given"):
        made(batch={"total": 10, "size": 3})
    with pytest.raises(SettingsError, match="budget: epochs and minibatches are both given"):
        made(budget={"epochs": 1, "minibatches": 3})


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"name": "SDG"}, "optimizer.name: unknown 'SDG'; did you mean 'SGD'?"),
        ({"name": "SGD", "momentm": 0.9}, "optimizer: unknown key 'momentm'; did you mean 'momentum'?"),
        ({"name": "SGD", "lr": -1.0}, "optimizer: Invalid learning rate"),
    ],
)
def test_optimizers(optimizer: dict[str, object], message: str) -> None:
    experiment = Experiment(task={"name": "tiny"}, optimizer=optimizer)
    with pytest.raises(SettingsError) as caught:
        experiment.job()
    assert str(caught.value).startswith(message)


def test_one_way_to_say_it_replaces_the_other() -> None:
    table: dict[str, Any] = {"budget": {"epochs": 3, "warmup": 2}, "batch": {"size": 8}}
    assign(table, "budget.minibatches", 40)
    assign(table, "batch.total", 64)
    assign(table, "optimizer.lr", 0.5)
    assert table == {
        "budget": {"minibatches": 40, "warmup": 2}, "batch": {"total": 64}, "optimizer": {"lr": 0.5},
    }  # fmt: skip


def test_a_file_with_assignments_on_top(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('learners = 2\n[task]\nname = "tiny"\n')
    experiment = Experiment.read(tmp_path / "x.toml", ["learners=3", "optimizer.lr=0.5"])
    assert (experiment.learners, experiment.optimizer["lr"]) == (3, 0.5)


def test_the_rate_grows_with_the_learners_if_asked() -> None:
    def rate(**more: Any) -> float:
        experiment = Experiment.of(
            {"task": {"name": "tiny"}, "optimizer": {"name": "SGD", "lr": 0.1}, "learners": 4} | more
        )
        task = experiment.make_task()
        return float(experiment.optimizer_of(task)(task.make_module()).param_groups[0]["lr"])

    assert rate() == pytest.approx(0.1)
    assert rate(rate={"scale": "learners"}) == pytest.approx(0.4)


def test_patience_ends_a_run_early() -> None:
    plain = Experiment.of({"task": {"name": "tiny"}})
    assert plain.make_schedule() is None
    patient = Experiment.of({"task": {"name": "tiny"}, "keep": {"patience": 2}}).make_schedule()
    assert patient is not None
    assert [patient.on_evaluation({"loss": loss}) for loss in (1.0, 2.0, 2.0)] == [False, False, True]


def test_a_score_that_the_task_does_not_have_is_named_at_once() -> None:
    with pytest.raises(SettingsError, match="keep.metric: unknown score 'losss'; did you mean 'loss'"):
        Experiment.of({"task": {"name": "tiny"}, "keep": {"metric": "losss"}}).job()


def test_learners_need_no_cluster() -> None:
    experiment = Experiment.of({"task": {"name": "tiny"}, "cluster": {"nodes": 2}, "learners": 2})
    assert "cluster" not in experiment.for_learners()
    assert Experiment.of(experiment.for_learners()).learners == 2


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingsError, match="an even number of learners, not 3"):
        Experiment.of({"task": {"name": "tiny"}, "strategy": {"name": "adpsgd-pairwise"}, "learners": 3})

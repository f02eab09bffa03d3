"""Every model under every strategy: in the simulator all of them, on two processes each model and each strategy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roundelay.experiment.run_observer import RunObserver
from roundelay.experiment.run_training import train
from roundelay.experiment.settings import BatchSettings, BudgetSettings, Experiment
from roundelay.models import MODELS
from roundelay.runs.run_folder import RunFolder
from roundelay.strategies import STRATEGIES
from roundelay.task import evaluate
from strategy_cases import CASES, SETTINGS, fitting

MINIBATCHES = 24
# Four learners' changes added up whole are four times a step: whether that ends below where it began is chance.
GENTLE = {"asgd-updates": {"rate": 0.25}}


def experiment(toned: str, model: str, strategy: str, learners: int) -> Experiment:
    table: dict[str, Any] = {
        "task": {
            "name": "acoustic",
            "data": toned,
            "chunk": 20,
            "model": {"name": model, "preset": "tiny"},
            "held_out_split": "train",  # a few steps show there first
        },
        "strategy": {"name": strategy} | SETTINGS.get(strategy, {}) | GENTLE.get(strategy, {}),
        "optimizer": {"name": "Adam", "lr": 0.01},
    }
    built = Experiment.of(table)
    learners = fitting(built.strategy, learners)
    return built.replace(
        learners=learners, batch=BatchSettings(size=60), clip=1.0, budget=BudgetSettings(minibatches=MINIBATCHES)
    )


@pytest.fixture(scope="module")
def losses(toned: str) -> dict[str, float]:
    """The loss of each model before it is trained."""
    found = {}
    for model in MODELS:
        task = experiment(toned, model, "synchronous", 1).make_task()
        sums = evaluate(task, task.make_module(), range(task.held_out_minibatches), lambda: None)
        found[model] = sums["loss"] / sums["frames"]
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
def test_in_the_simulator(model: str, strategy: str, toned: str, losses: dict[str, float]) -> None:
    what = experiment(toned, model, strategy, 4)
    trained = set[int]()

    class Noting(RunObserver):
        def stepped(self, minibatch: int, frames: int, loss: float) -> None:
            trained.add(minibatch)

    result = train(what, on="simulator", observer=Noting())
    assert trained == set(range(MINIBATCHES))
    assert result.scores["loss"] < losses[model]


COVERING = list(zip(STRATEGIES, itertools.cycle(MODELS), strict=False))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("strategy", "model"), COVERING)
def test_on_two_processes(strategy: str, model: str, toned: str, tmp_path: Path) -> None:
    what = experiment(toned, model, strategy, 2)
    out = tmp_path / "run"
    train(what, out, on="processes")
    saved, first = load_file(RunFolder(out).model), what.make_task().make_module().state_dict()
    assert saved.keys() == first.keys()
    assert any(not torch.equal(saved[name], first[name]) for name in first)
    assert (out / "acoustic" / "bundle.json").is_file()
    if len(what.strategy.lockstep_groups(what.learners)) == 1:  # lockstep: to the bit
        folder = RunFolder(tmp_path / "simulated")
        train(what, folder.path, on="simulator")
        simulated = load_file(folder.model)
        assert all(torch.equal(saved[name], simulated[name]) for name in saved)


def test_each_is_covered() -> None:
    assert {strategy for strategy, _ in COVERING} == set(STRATEGIES) <= set(CASES)
    assert {model for _, model in COVERING} == set(MODELS)

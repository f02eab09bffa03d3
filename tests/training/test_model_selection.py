"""Which model is kept, when a run stops early, and how the rate grows with learners."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import roundelay
from roundelay.errors import SettingsError
from roundelay.experiment import run_training as launching
from roundelay.experiment.settings import BudgetSettings, Experiment
from roundelay.learner import Learner
from roundelay.optim.early_stopping import EarlyStopping
from roundelay.optim.rate_scaling import RateSettings
from roundelay.optim.schedules import Constant, Newbob
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.task import Scores
from roundelay.training.event_order import Order
from roundelay.training.loop import Job, Training
from roundelay.training.model_selection import ModelSelector
from roundelay.training.observer import Evaluation
from roundelay.training.training_settings import KeepSettings
from tiny_jobs import Watching

TINY = {"name": "tiny", "frames_per_epoch": 320, "batch": 16, "hidden": [8], "classes": 5, "features": 6}


def experiment(model: str, learners: int = 2, **settings: Any) -> Experiment:
    keep = KeepSettings(model=model, **settings.pop("keep", {}))  # type: ignore[arg-type]  # one of three
    return Experiment(TINY, keep=keep, learners=learners, **{"budget": BudgetSettings(epochs=5)} | settings)


def train(what: Experiment, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], list[tuple[Tensor, Scores]]]:
    """Train in the simulator; return the result, the saved tensors, and every consensus with its scores."""
    seen: list[tuple[Tensor, Scores]] = []

    made = Job.training

    def watched(job: Job, runtime: Runtime, order: Order | None = None) -> Training:
        def note(learner: Learner, evaluation: Evaluation) -> None:
            if learner.index == 0:
                seen.append((evaluation.consensus.clone(), dict(evaluation.scores)))

        training = made(job, runtime, order)
        training.observers.append(Watching(evaluated=note))
        return training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "training", watched)
        result = launching.train(what, folder, on="simulator")
    return result.plain(), load_file(RunFolder(folder).model), seen


def tensors(what: Experiment, vector: Tensor) -> dict[str, Tensor]:
    """Lay a flat vector out as the model's tensors."""
    module = what.make_task().make_module()
    Learner(module).load(vector)
    return dict(module.state_dict())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_last_is_kept_by_default(tmp_path: Path) -> None:
    what = experiment("last")
    result, saved, seen = train(what, tmp_path / "run")
    assert same(saved, tensors(what, seen[-1][0]))
    assert "kept" not in result


def test_the_best_is_kept(tmp_path: Path) -> None:
    what = experiment("best", budget=BudgetSettings(epochs=4), optimizer={"name": "SGD", "lr": 0.9, "momentum": 0.5})
    result, saved, seen = train(what, tmp_path / "run")
    losses = [scores["loss"] for _, scores in seen]
    best = losses.index(min(losses))
    assert best < len(losses) - 1, "the last evaluation is the best, which shows nothing"
    assert result["scores"]["loss"] == losses[best]
    assert result["kept"] == {"model": "best", "minibatches": [20 * (best + 1)]}
    assert same(saved, tensors(what, seen[best][0]))
    about = json.loads((tmp_path / "run" / "model.json").read_text())
    assert about["kept"] == result["kept"]
    assert about["scores"]["loss"] == losses[best]


def test_the_best_may_be_judged_by_errors(tmp_path: Path) -> None:
    result, _, seen = train(experiment("best", keep={"metric": "error"}), tmp_path / "run")
    assert result["scores"]["error"] == min(scores["error"] for _, scores in seen)
    kept = ModelSelector(KeepSettings(model="best", metric="wer"))
    with pytest.raises(SettingsError, match="keep.metric: no score 'wer'; there are error, loss"):
        kept.add(1, torch.zeros(1), {"loss": 1.0, "error": 0.5})


def test_a_score_that_no_evaluation_gives_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="keep.metric: unknown score 'errors'; did you mean 'error'"):
        experiment("best", keep={"metric": "errors"}).job()


def test_the_mean_of_the_last_is_kept(tmp_path: Path) -> None:
    what = experiment("average", keep={"num_models": 3})
    result, saved, seen = train(what, tmp_path / "run")
    mean = (seen[-3][0] + seen[-2][0] + seen[-1][0]) / 3
    assert same(saved, tensors(what, mean))
    assert result["kept"] == {"model": "average", "minibatches": [60, 80, 100]}
    assert result["scores"]["loss"] not in [scores["loss"] for _, scores in seen]
    assert result["scores"]["loss"] == pytest.approx(seen[-1][1]["loss"], rel=0.2)


@pytest.mark.slow
def test_processes_keep_it_too(tmp_path: Path) -> None:
    what = experiment("average", keep={"num_models": 2})
    _, simulated, _ = train(what, tmp_path / "simulated")
    out = tmp_path / "run"
    roundelay.train(what, out, on="processes")
    assert same(load_file(RunFolder(out).model), simulated)
    assert json.loads((out / "model.json").read_text())["kept"]["minibatches"] == [80, 100]


def test_a_checkpoint_holds_what_is_kept() -> None:
    kept = ModelSelector(KeepSettings(model="average", num_models=2))
    for position in (10, 20, 30):
        kept.add(position, torch.full((3,), float(position)), {"loss": 1.0 / position, "error": 0.5})
    again = ModelSelector(KeepSettings(model="average", num_models=2))
    again.load_state_dict(kept.state_dict())
    assert {key: x.tolist() for key, x in again.state_dict().items()} == {
        key: x.tolist() for key, x in kept.state_dict().items()
    }
    assert sorted(key for key in kept.state_dict() if key.startswith("vector")) == ["vector.20", "vector.30"]


def test_patience_ends() -> None:
    patient = EarlyStopping(Constant(), 2, min_improvement=0.1)
    losses = [1.0, 0.8, 0.75, 0.5, 0.49, 0.48]  # 0.75 is better than 0.8, but not by a tenth
    assert [patient.on_evaluation({"loss": loss}) for loss in losses] == [False, False, False, False, False, True]
    again = EarlyStopping(Constant(), 2)
    again.restore(patient.state())
    assert again.on_evaluation({"loss": 0.6})


def test_patience_leaves_the_schedule_alone() -> None:
    patient, alone = EarlyStopping(Newbob(), 99), Newbob()
    for loss in (1.0, 0.9, 0.899, 0.85, 0.8499):
        assert patient.on_evaluation({"loss": loss}) == alone.on_evaluation({"loss": loss})
        assert patient(0.0) == alone(0.0)
    again = EarlyStopping(Newbob(), 99)
    again.restore(patient.state())
    assert again(0.0) == alone(0.0) < 1


def test_a_run_stops_early(tmp_path: Path) -> None:
    optimizer = {"name": "SGD", "lr": 0.0}  # nothing improves
    result, _, seen = train(experiment("last", keep={"patience": 2}, optimizer=optimizer), tmp_path / "run")
    assert len(seen) == 3
    assert result["scores"]["loss"] == seen[0][1]["loss"]


def rate_of(**settings: Any) -> float:
    what = Experiment(TINY, optimizer={"name": "SGD", "lr": 0.1}, **settings)
    job = what.job()
    rate: float = job.optimizer(job.task.make_module()).param_groups[0]["lr"]
    return rate


def test_rates_grow_with_learners() -> None:
    assert rate_of(learners=4) == 0.1
    assert rate_of(learners=4, rate=RateSettings("learners")) == pytest.approx(0.4)
    assert rate_of(learners=4, rate=RateSettings("batch")) == pytest.approx(0.4)
    assert rate_of(learners=4, rate=RateSettings("batch", reference=32)) == pytest.approx(0.2)
    assert rate_of(learners=1, rate=RateSettings("learners")) == 0.1


def test_an_effective_rate_is_that_of_the_mean(tmp_path: Path) -> None:
    """One step each and then a mean: N learners at N times the rate move the sum of their gradients' steps."""
    optimizer = {"name": "SGD", "lr": 0.01}
    strategy = {"name": "averaging", "period": 1}
    both: dict[str, Any] = {"optimizer": optimizer, "budget": {"minibatches": 2}, "task": TINY, "strategy": strategy}

    def moved(learners: int, scale: str) -> Tensor:
        what = Experiment.of(both | {"learners": learners, "rate": {"scale": scale}})
        _, saved, _ = train(what, tmp_path / f"{learners}{scale}")
        first = what.make_task().make_module().state_dict()
        return torch.cat([(saved[name] - first[name]).reshape(-1) for name in first])

    alone, scaled, unscaled = moved(1, "learners"), moved(2, "learners"), moved(2, "none")
    assert math.isclose(float(scaled.norm() / alone.norm()), 1.0, rel_tol=0.05)
    assert math.isclose(float(unscaled.norm() / alone.norm()), 0.5, rel_tol=0.05)


def test_nonsense_is_refused() -> None:
    with pytest.raises(SettingsError, match="num_models must be at least 1, not 0"):
        KeepSettings(num_models=0)
    with pytest.raises(SettingsError, match="patience must be at least 1, not 0"):
        KeepSettings(patience=0)
    with pytest.raises(SettingsError, match="reference must be at least 1, not 0"):
        RateSettings(reference=0)

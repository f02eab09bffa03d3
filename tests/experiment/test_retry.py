"""A run is tried again from its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exploding_task import Exploding
from roundelay.errors import CommunicationError, Deadlock, Mismatch, NumericalError, SettingsError
from roundelay.experiment.retry import run_with_retries
from roundelay.runtimes.simulator.simulation import SimulationOutcome
from roundelay.strategies import Synchronous
from roundelay.training.loop import Training
from roundelay.training.training_settings import GuardSettings
from stopped_simulations import job_of, run_in


def test_rolls_back_with_a_lower_rate(tmp_path: Path) -> None:
    guard = GuardSettings(nonfinite="rollback", lr_factor=0.5)

    def attempt(lower: float) -> SimulationOutcome[Training]:
        job = job_of(Synchronous(), guard=guard)
        job.lr_factor = lower
        Exploding(job, {(1, 3)}, below=0.3)  # two rollbacks it takes
        return run_in(tmp_path, job, 2)

    outcome = run_with_retries(attempt, tmp_path, guard)
    assert outcome.trainings[0].learner.rollback_lr_factor == 0.25
    resumed = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    rates = [(event["minibatch"], event["rate"]) for event in resumed if event["event"] == "resumed"]
    assert rates == [(21, 0.25)]  # the record is that of the last attempt


def test_rollbacks_come_to_an_end(tmp_path: Path) -> None:
    guard = GuardSettings(nonfinite="rollback", max_rollbacks=3)
    rates = []

    def attempt(lower: float) -> None:
        rates.append(lower)
        raise NumericalError("learner 0: the loss is nan")

    with pytest.raises(NumericalError, match="the loss is nan"):
        run_with_retries(attempt, tmp_path, guard)
    assert rates == [1.0, 0.5, 0.25, 0.125]


def test_lost_learners_are_tried_again_so_many_times() -> None:
    calls = []

    def attempt(lower: float) -> str:
        calls.append(lower)
        if len(calls) < 3:
            raise CommunicationError("all learners are lost")
        return "done"

    assert run_with_retries(attempt, None, None, restarts=2) == "done"
    assert calls == [1.0, 1.0, 1.0], "at the same rate"
    calls.clear()
    with pytest.raises(CommunicationError, match="all learners are lost"):
        run_with_retries(attempt, None, None, restarts=1)


@pytest.mark.parametrize("error", [Deadlock, Mismatch, SettingsError])
def test_what_would_happen_again_is_not_tried_again(error: type[Exception]) -> None:
    calls = []

    def attempt(lower: float) -> None:
        calls.append(lower)
        raise error("again")

    with pytest.raises(error):
        run_with_retries(attempt, None, GuardSettings(nonfinite="rollback"), restarts=5)
    assert len(calls) == 1

"""Early stopping: evaluations are counted from the best one on."""

from __future__ import annotations

import pytest

from roundelay.errors import SettingsError
from roundelay.optim.early_stopping import EarlyStopping
from roundelay.optim.schedules import Constant, ExponentialDecay


def test_stops_after_so_many_evaluations_without_an_improvement() -> None:
    stopping = EarlyStopping(Constant(), patience=2)
    assert [stopping.on_evaluation({"loss": loss}) for loss in (3.0, 2.0, 2.5, 1.0, 1.0, 1.5)] == [False] * 5 + [True]


def test_a_small_improvement_does_not_count() -> None:
    stopping = EarlyStopping(Constant(), patience=1, metric="error", min_improvement=0.1)
    assert [stopping.on_evaluation({"error": error}) for error in (1.0, 0.8, 0.75)] == [False, False, True]


def test_the_rate_is_the_schedules() -> None:
    schedule = ExponentialDecay(frames=100, final=0.25)
    assert EarlyStopping(schedule, patience=1)(50) == schedule(50) == 0.5


def test_a_metric_that_is_not_evaluated_is_named() -> None:
    with pytest.raises(SettingsError, match="no score 'wer'; there are error, loss"):
        EarlyStopping(Constant(), 1, metric="wer").on_evaluation({"loss": 1.0, "error": 0.5})

"""Factors of the learning rate, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.optim.schedules import Constant, ExponentialDecay, Newbob, WarmupAnneal

TINY = {"name": "tiny", "frames_per_epoch": 320, "batch": 16}


def test_exponential_falls_by_the_same_share_a_frame() -> None:
    schedule = ExponentialDecay(frames=1000, final=0.01)
    assert [schedule(frames) for frames in (0, 500, 1000, 5000)] == pytest.approx([1, 0.1, 0.01, 0.01])
    assert Constant()(10**9) == 1


def test_warm_up_then_a_step_down_by_the_root_of_two() -> None:
    schedule = WarmupAnneal(warmup_frames=1000, every_frames=200, first=0.1)
    expected = {0: 0.1, 500: 0.55, 1000: 1, 1199: 1, 1200: math.sqrt(0.5), 1399: math.sqrt(0.5), 1400: 0.5, 1800: 0.25}
    assert {frames: schedule(frames) for frames in expected} == pytest.approx(expected)
    assert WarmupAnneal(warmup_frames=0, every_frames=10)(0) == 1, "no warm-up"


def test_newbob_halves_from_the_first_small_gain_on_and_then_stops() -> None:
    schedule = Newbob(halve_below=0.1, stop_below=0.01)
    seen = []
    for loss in (2.0, 1.0, 0.95, 0.8, 0.799):
        stop = schedule.on_evaluation({"loss": loss})
        seen.append((schedule(0), stop))
    assert seen == [(1, False), (1, False), (0.5, False), (0.25, False), (0.25, True)]
    again = Newbob(halve_below=0.1, stop_below=0.01)
    again.restore(schedule.state())
    assert again(0) == 0.25
    assert again.on_evaluation({"loss": 0.799}), "as if it had gone on"


def test_newbob_does_not_count_a_loss_that_grows_as_a_gain() -> None:
    schedule = Newbob()
    assert not schedule.on_evaluation({"loss": 1.0})
    assert not schedule.on_evaluation({"loss": 3.0})
    assert schedule(0) == 0.5
    assert schedule.on_evaluation({"loss": 2.0}), "better than before, but not than the best"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ExponentialDecay(frames=0), "frames must be above 0, not 0"),
        (lambda: WarmupAnneal(warmup_frames=-1, every_frames=5), "warmup_frames must be at least 0"),
        (lambda: WarmupAnneal(warmup_frames=1, every_frames=0), "every_frames must be above 0, not 0"),
        (
            lambda: WarmupAnneal(warmup_frames=1, every_frames=5, factor=0),
            "factor must be above 0 and at most 1",
        ),
        (lambda: Newbob(factor=1.0), "factor must be above 0 and below 1, not 1.0"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        make()


def test_a_clip_that_is_no_length_is_refused() -> None:
    with pytest.raises(SettingsError, match="clip must be above 0, not 0"):
        Experiment(TINY, clip=0.0)

"""Enough blocks, and rates that fit a strategy's gain."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.study.definition import Study
from roundelay.study.matrix import expand
from roundelay.study.regimes import Fitted, fit_period, nodes_for, scaled, scaling
from study_files import write_study


def test_rates_grow_with_the_learners_where_gradients_are_averaged(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", strategies='["synchronous", "bmuf", "asgd"]', learners="[4]")
    trials = expand(Study.read(path)).trials
    rates: dict[str, list[float | None]] = {}
    for trial in trials:
        if trial.learners == 4:
            rates.setdefault(trial.strategy, []).append(trial.rate)
    assert rates == {"synchronous": [0.2, 0.8], "bmuf": [0.05, 0.2], "asgd": [0.05, 0.2]}


@pytest.mark.parametrize(
    ("strategy", "epochs", "period", "outside"),
    [
        ('"bmuf"', 16, 2, ""),  # 640 minibatches of 4 learners are 160 steps, which hold 20 x 4 blocks of 2
        ('"bmuf"', 32, 4, ""),
        ('"bmuf"', 8, 1, ""),
        ('"bmuf"', 4, 1, "40 blocks of 1 steps in the budget; 20 x 4 learners are needed"),
        ('{ name = "bmuf", block = 5 }', 16, 5, "32 blocks of 5 steps in the budget; 20 x 4 learners are needed"),
        ('"averaging"', 4, 2, ""),  # which forgets, and needs just 20
        ('"averaging"', 32, 10, ""),
        ('"slowmo"', 16, 2, ""),
        ('"asgd-updates"', 4, 2, ""),
        ('"gossip-pga"', 4, 10, ""),  # which mixes between its periods, too
        ('"easgd"', 1, 1, "10 blocks of 1 steps in the budget; 20 are needed"),
    ],
)
def test_blocks_are_chosen_so_that_enough_fit(
    strategy: str, epochs: int, period: int, outside: str, tmp_path: Path
) -> None:
    path = write_study(tmp_path / "s.toml", strategies=f"[{strategy}]", learners="[4]", seeds="[1]", epochs=epochs)
    cell = next(cell for cell in expand(Study.read(path)).cells if cell.learners == 4)
    settings = cell.settings["strategy"]
    assert settings.get("block", settings.get("period")) == period
    assert cell.fitted.outside == outside


def test_one_learner_and_periods_by_frames_need_no_fit() -> None:
    assert fit_period({"name": "bmuf"}, minibatches=100, learners=1, wanted=20) == Fitted()
    assert fit_period({"name": "synchronous"}, minibatches=100, learners=4, wanted=20) == Fitted()
    assert fit_period({"name": "bmuf", "block_frames": 500}, minibatches=100, learners=4, wanted=20) == Fitted()


def test_a_rate_grows_by_a_power_of_the_learners() -> None:
    assert (scaling("synchronous", common_batch=False), scaling("bmuf", common_batch=False)) == (1.0, 0.0)
    assert (scaling("synchronous", common_batch=True), scaling("asgd", common_batch=True)) == (0.0, -1.0)
    assert (scaled(0.1, 4, 1.0), scaled(0.1, 4, 0.0), scaled(0.3, 9, -0.5)) == (0.4, 0.1, 0.1)


@pytest.mark.parametrize(("learners", "size"), [(1, 1), (6, 2), (7, 1), (16, 4), (12, 3)])
def test_nodes_are_near_the_square_root(learners: int, size: int) -> None:
    assert nodes_for(learners) == size

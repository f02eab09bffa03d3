"""A study's file: what it names, what it merges, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.included_files import merge
from roundelay.study.definition import Study
from roundelay.study.matrix import expand
from study_files import write_study


@pytest.mark.parametrize("rates", ["[0.1, 0.1]", "[0.0, 0.1]", "[-0.1]", "[inf]", "[nan]"])
def test_rates_that_cannot_be(rates: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tuning: rates must (be above 0|differ)"):
        Study.read(write_study(tmp_path / "s.toml", rates=rates))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategies": '["synchronous", "bumf"]'}, "strategies[1]: unknown strategy 'bumf'; did you mean 'bmuf'?"),
        ({"more": 'baseline = "synchronus"'}, "baseline: unknown strategy 'synchronus'; did you mean 'synchronous'?"),
        ({"seeds": "[0]"}, "tuning.seed 0 is also in `seeds`"),
        ({"seeds": "[]"}, "seeds: at least one is needed"),
        ({"more": "learnrs = [1]"}, "unknown key 'learnrs'; did you mean 'learners'?"),
        (
            {"strategies": '[{ name = "averaging", perod = 3 }]'},
            "strategy: unknown key 'perod'; did you mean 'period'?",
        ),
        ({"learners": "[0]"}, "learners must be at least 1"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        expand(Study.read(write_study(tmp_path / "s.toml", **changes)))
    assert message in str(wrong.value)


def test_another_name_takes_the_place_of_a_table() -> None:
    table = {"model": {"name": "dnn", "width": 8}, "lr": 1}
    assert merge(table, {"model": {"width": 4}}) == {"model": {"name": "dnn", "width": 4}, "lr": 1}
    assert merge(table, {"model": {"name": "lstm"}}) == {"model": {"name": "lstm"}, "lr": 1}
    assert table["model"] == {"name": "dnn", "width": 8}

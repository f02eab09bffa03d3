"""No strategy drifts: its run is still what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from histories import FOLDER, history
from roundelay.strategies import STRATEGIES


@pytest.mark.parametrize("name", STRATEGIES)
def test_history(name: str) -> None:
    path = FOLDER / f"{name}.json"
    assert path.exists(), f"none yet: tests/golden/regenerate.py {name}"
    golden: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    now = history(name)
    assert now["steps of each learner"] == golden["steps of each learner"]
    assert now["weights"] == pytest.approx(golden["weights"], abs=1e-5)
    assert len(now["evaluations"]) == len(golden["evaluations"])
    for mine, theirs in zip(now["evaluations"], golden["evaluations"], strict=True):
        assert mine.pop("error") == pytest.approx(theirs.pop("error"), abs=3e-3)  # in whole frames, of 1024
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_there_is_no_history_of_nothing() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(STRATEGIES)

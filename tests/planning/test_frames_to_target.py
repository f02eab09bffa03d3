"""How many frames a target takes, by runs that were recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.planning.frames_to_target import Needed, parse_target, read_convergence
from roundelay.runs.record import Record
from roundelay.runs.target import Target

LOSS = Target(score="loss", value=1.0)


def write(
    run: Path, strategy: str, losses: list[float], *, learners: int = 2, cell: dict[str, object] | None = None
) -> None:
    """Write a run that evaluates after each minibatch of 10 frames."""
    run.mkdir(parents=True)
    (run / "settings.toml").write_text(f'learners = {learners}\n[strategy]\nname = "{strategy}"\n')
    record = Record(run / "record.jsonl", clock="wall")
    for k, loss in enumerate(losses):
        record.write("step", "learner 0", k + 0.5, minibatch=k, frames=10, loss=loss)
        record.write("evaluate", "learner 0", k + 1.0, minibatch=k + 1, loss=loss)
    record.close(float(len(losses)))
    if cell is not None:
        (run / "cell.json").write_text(json.dumps(cell))


def test_a_target_is_a_score_and_a_value() -> None:
    assert parse_target("loss=1.2") == {"score": "loss", "value": 1.2}
    for text in ("loss", "=1", "loss=", "loss=low", "loss=nan"):
        with pytest.raises(SettingsError, match="use SCORE=VALUE"):
            parse_target(text)


def test_one_run(tmp_path: Path) -> None:
    write(tmp_path / "run", "bmuf", [3.0, 2.0, 0.9, 0.5], learners=4)
    assert read_convergence(tmp_path / "run", LOSS) == (LOSS, {"bmuf": Needed(30.0, 1, 0, (4,))})


def test_a_study_has_its_own_target_and_the_median_of_its_runs(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"target": LOSS}))
    for seed, losses in enumerate(([0.9], [2.0, 0.9], [2.0, 2.0, 0.9])):
        write(tmp_path / "runs" / f"bmuf-{seed}", "bmuf", losses)
    write(tmp_path / "runs" / "trial", "bmuf", [0.1], cell={"trial": True})
    write(tmp_path / "runs" / "asgd-0", "asgd", [2.0, 2.0])
    write(tmp_path / "runs" / "asgd-1", "asgd", [0.9], cell={"status": "diverged"})
    target, needed = read_convergence(tmp_path, None)
    assert target == LOSS
    assert needed == {"bmuf": Needed(20.0, 3, 0, (2,)), "asgd": Needed(None, 2, 2, (2,))}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a run nor a study"):
        read_convergence(tmp_path, LOSS)
    write(tmp_path / "run", "bmuf", [1.0])
    with pytest.raises(SettingsError, match="no target; give one, as in --target loss=1.2"):
        read_convergence(tmp_path / "run", None)
    with pytest.raises(DataError, match="no evaluation has the score 'wer'; use one of: loss"):
        read_convergence(tmp_path / "run", Target(score="wer", value=0.1))

"""Logs for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roundelay.errors import MissingExtra
from roundelay.runs.follower import Follower
from watched_run import line, make_run, steps


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of packages that TensorBoard imports
def test_logs_for_tensorboard(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from roundelay.runs.tensorboard import Logs

    record = run / "record.jsonl"
    record.write_text(steps(100) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    follower, logs = Follower(run), Logs(tmp_path / "logs")
    follower.read()
    logs.write(follower)
    with record.open("a") as file:
        file.write(line("evaluate", "learner 0", 2.0, minibatch=20, error=0.3))
    follower.read()
    logs.write(follower)
    logs.close()
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("held out/error")] == [
        (3200, 0.4),
        (3200, 0.3),
    ]
    assert events.Scalars("loss")[0].step >= 2000
    assert events.Scalars("frames of/learner 1")[-1].value == 1600


def test_tensorboard_is_an_extra(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roundelay.runs.tensorboard import Logs

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"\[tensorboard\]"):
        Logs(tmp_path / "logs")

"""What trackers of experiments are told."""

from __future__ import annotations

from pathlib import Path

from roundelay.runs.follower import Follower
from roundelay.runs.metric_logs import MetricLogs
from watched_run import line, make_run, steps


class Kept(MetricLogs):
    def __init__(self) -> None:
        super().__init__()
        self.added: list[tuple[str, float, int]] = []

    def add(self, name: str, value: float, frames: int) -> None:
        self.added.append((name, value, frames))


def test_everything_is_told_once(tmp_path: Path) -> None:
    run, kept = make_run(tmp_path / "run"), Kept()
    record = run / "record.jsonl"
    record.write_text(steps(100) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    follower = Follower(run)
    for _ in range(2):
        follower.read()
        kept.write(follower)
    assert [each for each in kept.added if each[0] == "held out/error"] == [("held out/error", 0.4, 3200)]
    assert [name for name, _, _ in kept.added].count("frames of/learner 1") == 1

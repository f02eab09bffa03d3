"""Follow the record of a run while it is written."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay.errors import CheckpointError
from roundelay.runs.reader import Tail, finite, finite_numbers, parse_line, read_object
from roundelay.runs.record import KINDS

RECENT = 200  # steps over which the current loss and speed are averaged


@dataclass
class LearnerActivity:
    """What one learner or server has done."""

    steps: int = 0
    frames: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by kind: compute, communicate, wait, serve, evaluate."""
    totals: bool = False
    """Whether ``spent`` is of the whole run, and not a sum of single spans."""


class Follower:
    """The state of a run, from the complete lines of its record; `read` adds the new ones."""

    def __init__(self, run: Path) -> None:
        if not run.is_dir():
            raise CheckpointError(f"{run}: no such folder; give the folder of a run")
        if not (run / "settings.toml").exists() and not list(run.glob("record*.jsonl")):
            raise CheckpointError(f"{run}: not the folder of a run: it has neither settings.toml nor a record")
        self.run = run
        self._tails: dict[Path, Tail] = {}
        self._about = read_object(run / "run.json")
        self._begin()

    def _begin(self) -> None:
        """Start without any event."""
        self.learners: dict[str, LearnerActivity] = {}
        self.losses: list[tuple[float, float]] = []
        """(frames so far, loss) of each step."""
        self.scores: list[dict[str, Any]] = []
        """Evaluations as in the record, with the ``frames`` trained so far."""
        self.events: list[dict[str, Any]] = []
        """Learners that were lost or joined, and injected faults."""
        self.frames = self.seconds = 0.0
        self.clock = ""
        self.unreadable = 0
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=RECENT)  # time, frames, loss

    @property
    def total(self) -> int | None:
        """The minibatches of the whole run."""
        value = self._about.get("minibatches")
        return value if isinstance(value, int) else None

    @property
    def title(self) -> str:
        """What is trained, in one line."""
        about = self._about
        words = [str(self.run)]
        if about:
            words.append(f"{about.get('learners', '?')} learners on {about.get('on', '?')}")
            words += [f"batch {about['batch']} each"] if "batch" in about else []
        return "  ".join(words)

    @property
    def steps(self) -> int:
        """The minibatches trained so far."""
        return len(self.losses)

    @property
    def finished(self) -> bool:
        """Whether the model, which is written last, exists, or a user loop has written that it has ended."""
        return (self.run / "model.json").exists() or read_object(self.run / "run.json").get("ended") is True

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last write to the record."""
        times = [path.stat().st_mtime for path in self._files()]
        return max(0.0, time.time() - max(times)) if times else math.inf

    @property
    def loss(self) -> float:
        """The mean of the latest losses."""
        return sum(loss for _, _, loss in self._recent) / len(self._recent) if self._recent else math.nan

    @property
    def speed(self) -> float:
        """Frames per second over the latest steps, by the run's clock."""
        if len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return self.frames / self.seconds if self.seconds else 0.0
        return (self._recent[-1][1] - self._recent[0][1]) / (self._recent[-1][0] - self._recent[0][0])

    def read(self) -> bool:
        """Add the lines that are complete since the last call; return whether there were any."""
        files = self._files()
        whole = self.run / "record.jsonl"
        if whole in files and self._tails and whole not in self._tails:
            self._begin()  # the learners' records were merged: the merged one has every line
        lines = [line for path in files for line in self._new_lines(path)]
        if len(files) > 1:
            lines.sort(key=lambda line: line["time"])
        for line in lines:
            self._take(line)
        return bool(lines)

    def _files(self) -> list[Path]:
        whole = self.run / "record.jsonl"
        return [whole] if whole.exists() and whole.stat().st_size else sorted(self.run.glob("record-*.jsonl"))

    def _new_lines(self, path: Path) -> list[dict[str, Any]]:
        lines = []
        for line in self._tails.setdefault(path, Tail(path)).new_lines():
            event = parse_line(line)
            if event is None or not {"event", "member"} <= event.keys() or finite(event.get("time")) is None:
                self.unreadable += 1
            else:
                lines.append(event)
        return lines

    def _take(self, event: dict[str, Any]) -> None:
        kind, member = event["event"], event["member"]
        learner = self.learners.setdefault(member, LearnerActivity())
        self.clock = event.get("clock", self.clock)
        seconds, frames = finite(event.get("seconds")) or 0.0, finite(event.get("frames")) or 0.0
        self.seconds = max(self.seconds, event["time"] + seconds)
        if kind == "step":
            loss = finite(event.get("loss"))
            loss = math.nan if loss is None else loss
            learner.steps, learner.frames = learner.steps + 1, learner.frames + frames
            self.frames += frames
            self.losses.append((self.frames, loss))
            self._recent.append((event["time"], self.frames, loss))
        elif kind == "evaluate" and "minibatch" in event:
            self.scores.append(event | {"frames": self.frames})
        elif kind in KINDS and not learner.totals:
            learner.spent[kind] = learner.spent.get(kind, 0.0) + seconds
        elif kind == "totals":
            learner.spent = {name: value for name, value in finite_numbers(event).items() if name in KINDS}
            learner.totals = True
        elif kind in ("lost", "joined", "fault"):
            self.events.append(event)

"""Follow the record of a run while it is written: what is known of it so far."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay.errors import CheckpointError
from roundelay.runs.reader import finite, read_object
from roundelay.runs.record import KINDS

__all__ = ["Follower", "LearnerActivity"]

RECENT = 200  # steps that the present loss and speed are taken over


@dataclass
class LearnerActivity:
    """What one learner, or a server, has done."""

    steps: int = 0
    frames: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by kind: compute, communicate, wait, serve, evaluate."""
    totals: bool = False
    """Whether ``spent`` is of the whole run, and no longer summed from single spans."""


class Follower:
    """The state of a run, from the lines of its record that are whole; `read` takes in what is new."""

    def __init__(self, run: Path) -> None:
        if not run.is_dir():
            raise CheckpointError(f"{run}: there is no such run")
        if not (run / "settings.toml").exists() and not list(run.glob("record*.jsonl")):
            raise CheckpointError(f"{run}: not a run's folder; there is neither settings.toml nor a record in it")
        self.run = run
        self._offsets: dict[Path, int] = {}
        self._about = read_object(run / "run.json")
        self._begin()

    def _begin(self) -> None:
        """Know nothing yet."""
        self.learners: dict[str, LearnerActivity] = {}
        self.losses: list[tuple[float, float]] = []
        """(frames so far, loss) of each step."""
        self.scores: list[dict[str, Any]] = []
        """Evaluations, as they are in the record, with the ``frames`` so far."""
        self.happenings: list[dict[str, Any]] = []
        """Learners lost, joined or harmed on purpose."""
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
        """Say in a line what is trained."""
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
        """Whether the model is there, which is written last, or a loop of the user's own has said that it has ended."""
        return (self.run / "model.json").exists() or read_object(self.run / "run.json").get("ended") is True

    @property
    def silent_seconds(self) -> float:
        """How long ago the record was last written to."""
        times = [path.stat().st_mtime for path in self._files()]
        return max(0.0, time.time() - max(times)) if times else math.inf

    @property
    def loss(self) -> float:
        """The mean of the latest losses."""
        return sum(loss for _, _, loss in self._recent) / len(self._recent) if self._recent else math.nan

    @property
    def speed(self) -> float:
        """Frames a second lately, by the run's clock."""
        if len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return self.frames / self.seconds if self.seconds else 0.0
        return (self._recent[-1][1] - self._recent[0][1]) / (self._recent[-1][0] - self._recent[0][0])

    def read(self) -> bool:
        """Take in all lines that have become whole since; return whether there were any."""
        files = self._files()
        whole = self.run / "record.jsonl"
        if whole in files and self._offsets and whole not in self._offsets:
            self._begin()  # the learners' records have been made into one: it has all that we have seen
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
        offset = self._offsets.setdefault(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            new = file.read()
        end = new.rfind(b"\n") + 1  # what follows is half a line so far
        self._offsets[path] = offset + end
        lines = []
        for line in new[:end].splitlines():
            try:
                event = json.loads(line)
                event["event"], event["member"], event["time"] + 0.0
            except (ValueError, KeyError, TypeError):
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
            whole = {name: finite(event.get(name)) for name in KINDS}
            learner.spent, learner.totals = {name: value for name, value in whole.items() if value is not None}, True
        elif kind in ("lost", "joined", "fault"):
            self.happenings.append(event)

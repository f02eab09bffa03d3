"""The history of one run, from its folder: curves, time by kind, staleness, bytes, events."""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from roundelay.runs.downsampling import Curve, Span, bin_curve
from roundelay.runs.reader import (
    Problems,
    finite,
    finite_numbers,
    member_order,
    read_lines,
    read_object,
    read_settings,
    record_files,
)
from roundelay.runs.record import KINDS
from roundelay.runs.target import Point

_COMMON = {"event", "member", "clock", "time", "seconds", "minibatch", "epoch"}
MOST_EVENTS = 200
MOST_SPANS = 300_000  # kept in memory of one run; a thousand learners write millions


@dataclass
class Details:
    """The history of a run; what is missing is empty, and `problems` says so."""

    folder: Path
    clock: str = ""
    problems: Problems = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    training: Curve = field(default_factory=list)
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    staleness: Counter[float] = field(default_factory=Counter)
    distances: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    frames: float = 0.0
    seconds: float = 0.0
    """Of training, without evaluations."""
    evaluating: float = 0.0
    """Seconds in which learners evaluated or saved, by the run's clock; a simulator's clock is paused then."""
    finished: bool = False
    diverged: bool = False
    decoded: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The ``wer.json`` of each decoding, by the name of its folder."""

    @property
    def frames_per_second(self) -> float | None:
        """Frames that all learners together trained per second."""
        return self.frames / self.seconds if self.seconds > 0 and self.frames else None

    @property
    def total_bytes(self) -> float | None:
        """Bytes that all learners and servers together sent."""
        return math.fsum(self.sent.values()) if self.sent else None

    def shares(self) -> dict[str, float]:
        """Return the share of the learners' time by kind; serving happens beside computing and is not counted."""
        sums: dict[str, float] = defaultdict(float)
        for member, kinds in self.spent.items():
            if member.startswith("learner"):
                for kind, seconds in kinds.items():
                    sums[kind] += seconds
        whole = math.fsum(seconds for kind, seconds in sums.items() if kind not in ("serve", "evaluate"))
        return {kind: seconds / whole for kind, seconds in sums.items() if kind != "evaluate"} if whole else {}


def read_details(folder: Path) -> Details:
    """Read a run's folder."""
    details = Details(folder)
    problems = details.problems
    details.settings = read_settings(folder / "settings.toml", problems)
    details.about = read_object(folder / "run.json", problems, needed=True)
    details.model = read_object(folder / "model.json", problems)
    details.finished = bool(details.model)
    files = record_files(folder)
    if not files:
        problems.append("there is no record")
    elif len(files) > 1 or files[0].name != "record.jsonl":
        problems.append("the learners' records were never merged")
    _Reader(details).read(line for path in files for line in read_lines(path, problems))
    for scored in sorted(folder.glob("decode/*/wer.json")):
        if wer := read_object(scored, problems):
            details.decoded[scored.parent.name] = wer
    return details


def straggler(settings: dict[str, Any], about: dict[str, Any]) -> float:
    """Return how many times slower the slowest learner is than the others, at most; 1 if all are equal.

    It is taken from ``run.json`` or, if that has nothing, from the settings of the cluster.
    """
    slow, cluster = about.get("slow"), settings.get("cluster")
    slowed = cluster.get("stragglers") if isinstance(cluster, dict) else None
    if isinstance(slow, dict):
        factors = list(slow.values())
    else:
        factors = [
            each.get("factor") for each in (slowed if isinstance(slowed, list) else []) if isinstance(each, dict)
        ]
    return max([1.0, *(factor for each in factors if (factor := finite(each)) is not None)])


class _Step(NamedTuple):
    """A learner's step on a minibatch."""

    time: float
    member: str
    minibatch: int
    frames: float
    loss: float


class _Reader:
    """Adds the lines of a record, in any order, to a history."""

    def __init__(self, details: Details) -> None:
        self.details = details
        self.steps: list[_Step] = []
        self.evaluations: list[tuple[str, float, dict[str, Any]]] = []
        self.evaluating: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.totalled: set[str] = set()
        self.strange = self.kept = 0

    def read(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add all lines."""
        for line in lines:
            event, time = line.get("event"), finite(line.get("time"))
            if not isinstance(event, str) or time is None:
                self.strange += 1
                continue
            self.details.clock = self.details.clock or str(line.get("clock", ""))
            self.take(event, str(line.get("member", "")), time, line)
        if self.strange:
            self.details.problems.append(f"the record has {self.strange} lines without an event or a time")
        self.finish()

    def take(self, event: str, member: str, time: float, line: dict[str, Any]) -> None:
        """Add one line."""
        seconds = finite(line.get("seconds"))
        if event in KINDS and seconds is not None:
            if self.kept < MOST_SPANS:
                self.kept += 1
                self.details.spans.setdefault(member, []).append(Span(event, time, seconds))
            if member not in self.totalled:
                self.spent[member][event] += seconds
            if event == "evaluate":
                self.evaluating[member].append((time, seconds))
        elif event == "step":
            self.step(member, time, line)
        elif event == "evaluate":
            self.evaluations.append((member, time, line))
        elif event == "totals":
            self.totals(member, line)
        elif len(self.details.events) < MOST_EVENTS:  # any other event
            self.details.events.append(line)

    def step(self, member: str, time: float, line: dict[str, Any]) -> None:
        """Add a step of a learner."""
        loss = line.get("loss")
        number = float(loss) if isinstance(loss, int | float) else math.nan
        self.details.diverged |= loss is not None and not math.isfinite(number)
        minibatch = int(finite(line.get("minibatch")) or 0)
        self.steps.append(_Step(time, member, minibatch, finite(line.get("frames")) or 0.0, number))
        if (staleness := finite(line.get("staleness"))) is not None:
            self.details.staleness[staleness] += 1
        if (distance := finite(line.get("distance"))) is not None:
            self.details.distances.append(distance)

    def totals(self, member: str, line: dict[str, Any]) -> None:
        """Use the totals of a learner instead of the sum of the spans that were written."""
        if member not in self.totalled:
            self.totalled.add(member)
            self.spent[member].clear()
        for kind in KINDS:
            self.spent[member][kind] += finite(line.get(kind)) or 0.0
        if (sent := finite(line.get("bytes"))) is not None:
            self.details.sent[member] = self.details.sent.get(member, 0.0) + sent

    def finish(self) -> None:
        """Make the history of the lines that were added."""
        details = self.details
        if self.evaluating:
            self.steps = [step._replace(time=self.trained(step.member, step.time)) for step in self.steps]
        self.steps.sort()
        frames = array("d", itertools.accumulate(step.frames for step in self.steps))
        details.training = bin_curve(frames, array("d", (step.loss for step in self.steps)))
        details.frames, details.seconds = (frames[-1], self.steps[-1].time) if self.steps else (0.0, 0.0)
        details.spent = {member: dict(self.spent[member]) for member in sorted(self.spent, key=member_order)}
        details.evaluating = max((kinds.get("evaluate", 0.0) for kinds in details.spent.values()), default=0.0)
        details.spans = {member: details.spans[member] for member in sorted(details.spans, key=member_order)}
        self.evaluate()

    def evaluate(self) -> None:
        """Turn evaluations into points; each has the frames of all minibatches with lower numbers."""
        each = {step.minibatch: step.frames for step in self.steps}
        numbers = sorted(each)
        behind = [0.0, *itertools.accumulate(each[number] for number in numbers)]
        for member, time, line in self.evaluations:
            minibatch = int(finite(line.get("minibatch")) or 0)
            trained = behind[bisect.bisect_left(numbers, minibatch)]
            scores = {name: number for name, number in finite_numbers(line).items() if name not in _COMMON}
            seconds = self.trained(member, time)
            self.details.points.append(Point(frames=trained, minibatch=minibatch, seconds=seconds, scores=scores))
            self.details.diverged |= "loss" in line and "loss" not in scores
            if (distance := scores.get("distance")) is not None:
                self.details.distances.append(distance)
        self.details.points.sort(key=lambda point: point["minibatch"])

    def trained(self, member: str, time: float) -> float:
        """Return the time of an event without the seconds spent on evaluating and saving before it."""
        spans = self.evaluating.get(member)
        if not spans:
            return time
        return time - math.fsum(min(max(time - begin, 0.0), seconds) for begin, seconds in spans)

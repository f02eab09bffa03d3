"""The result of a study as plain JSON, as `roundelay.study.summary.summarise` returns it.

Each time has its ``clock``; wall time and virtual time are never in one row, group or ranking.  ``None`` stands for a
missing value: the time to a target that was missed, the score of a run that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from roundelay.runs.target import Point, Target

Certainty = Literal["clear", "likely", "open", "none"]
"""Ranges over three seeds or more do not overlap; better in every seed; too close or too few; no comparison."""


class Spread(TypedDict):
    """A value over seeds; a miss counts as infinite, so that a median may be ``None``."""

    median: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    """In the order of the row's ``seeds``."""


class Conditions(TypedDict):
    """The conditions that the trials of a strategy share."""

    on: str
    """``simulator`` or ``processes``; separate runs may have another runtime."""
    cluster: str
    model: str
    learners: int


class Key(Conditions):
    """The conditions that are equal within a group."""

    clock: str
    """``virtual`` or ``wall``."""


class Variant(Key):
    """A strategy with its settings, under one set of conditions."""

    strategy: str
    rate: float | None
    regime: str
    """Empty, or the reason why there are too few blocks for the regime of its paper: it is then shown, not ranked."""
    period: int | None
    """Steps between two communications, for a strategy that has a period."""
    usual_period: int | None
    """The default of the strategy: more than ``period`` if the budget is too short for it."""


def variant_of(described: Mapping[str, Any]) -> Variant:
    """Return the part of a described cell that is common to all its seeds."""
    return cast("Variant", {name: described.get(name) for name in Variant.__annotations__})


class CellResult(Variant):
    """One run: its ``cell.json`` and its evaluations."""

    name: str
    path: str
    """Of the run's folder, relative to the study's."""
    seed: int
    trial: bool
    status: Literal["done", "failed", "diverged", "interrupted"]
    error: str
    scores: dict[str, float]
    seconds: float | None
    """Of training, by the cell's clock."""
    frames: float | None
    frames_per_second: float | None
    reached_seconds: float | None
    """Time of the first evaluation that reached the target; ``None`` is a miss."""
    reached_frames: float | None
    curve: list[Point]
    wer: dict[str, object] | None
    """The object of ``wer.json`` (``wer`` in percent, ``interval``, …), if the run was decoded."""
    problems: str
    """Problems with the cell's files: a missing record, an incomplete line."""


class StrategyRow(Variant):
    """A strategy in a group, with all its seeds."""

    seeds: list[int]
    cells: list[str]
    statuses: dict[str, int]
    """The number of cells that are done, failed, diverged, interrupted."""
    hits: int
    """The number of seeds that reached the target."""
    rank: int | None
    """From 1, by median time to the target; equal times share a rank.  ``None``: a miss, or too few blocks."""
    time: Spread
    """Seconds to the target."""
    frames: Spread
    """Frames to the target."""
    score: Spread
    """The target's score at the end of the budget."""
    scores: dict[str, Spread]
    seconds: Spread
    """Of the whole budget."""
    frames_per_second: Spread
    speedup: float | None
    """Of the median time to the target, over one learner's on the same cluster and model."""
    efficiency: float | None
    """The speed-up divided by the number of learners."""
    throughput_speedup: float | None
    """Of frames per second, over one learner's."""
    throughput_efficiency: float | None
    wer: Spread | None


class Answer(TypedDict):
    """The short answer in sentences."""

    headline: str
    """One sentence: which strategy, by how much."""
    sentences: list[str]
    """Certainty and limits, one sentence each."""
    changes: list[str]
    """What can change the answer, one sentence each."""
    certainty: Certainty
    winner: str | None
    runner_up: str | None
    ratio: float | None
    """The runner-up's median time over the winner's."""


def no_answer(headline: str, sentences: Sequence[str] = (), changes: Sequence[str] = ()) -> Answer:
    """Return an answer without a winner."""
    return {
        "headline": headline, "sentences": [*sentences], "changes": [*changes], "certainty": "none",
        "winner": None, "runner_up": None, "ratio": None,
    }  # fmt: skip


class RowGroup(TypedDict):
    """The strategies under one set of conditions, the best first, those without rank last."""

    key: Key
    baseline: str
    """The strategy of the one learner to which speed-ups refer."""
    baseline_time: float | None
    rows: list[StrategyRow]
    answer: Answer


class Trials(Conditions):
    """The trials for a learning rate, and the chosen rate."""

    strategy: str
    rates: list[float]
    scores: list[float | None]
    """The target's score of each trial on dev, by which the rate is chosen; ``None``: diverged, failed or not done."""
    statuses: list[str]
    """The status of each trial, as of a cell."""
    cells: list[str]
    chosen: float | None
    at_edge: bool
    """Whether the chosen rate is the first or last of the grid: a wider grid may be better."""


class Profile(TypedDict):
    """The share of groups in which a strategy's time is within a factor of the best time."""

    strategy: str
    clock: str
    factors: list[float]
    shares: list[float]
    area: float
    """The area under the profile over the logarithm of the factors, from 0 to 1; 1 is the best in every group."""


def list_faults(cells: Iterable[CellResult]) -> list[dict[str, str]]:
    """Return ``{"cell", "status", "error"}`` of each run that failed, diverged or was interrupted, trials too."""
    return [
        {"cell": cell["name"], "status": cell["status"], "error": cell["error"]}
        for cell in cells
        if cell["status"] != "done"
    ]


class Summary(TypedDict):
    """The result of a study."""

    title: str
    target: Target
    budget: dict[str, float]
    """``frames`` that every run trains."""
    baseline: str
    complete: bool
    """Whether every cell of the matrix has been computed."""
    missing: list[str]
    """Names of cells that are not computed yet."""
    answer: Answer
    """For the whole study: of the group with the most learners and the first cluster, with sentences for the others."""
    groups: list[RowGroup]
    rows: list[StrategyRow]
    trials: list[Trials]
    profiles: list[Profile]
    cells: list[CellResult]
    faults: list[dict[str, str]]
    """As of `list_faults`."""
    notes: list[str]
    """The method: budget, tuning, regime, and other limits of the numbers."""

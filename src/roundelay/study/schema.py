"""What a study says, as plain JSON: the shape of what `roundelay.study.summary.summarise` returns.

A time is always beside its ``clock``; wall time and virtual time are never in one row, group or ranking.  ``None``
stands for what there is not: the time to a target that was missed, the score of a run that failed.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from roundelay.runs.target import Point, Target

__all__ = [
    "Answer",
    "CellResult",
    "Key",
    "Profile",
    "RowGroup",
    "Spread",
    "StrategyRow",
    "Summary",
    "Trials",
]

Certainty = Literal["clear", "likely", "open", "none"]
"""Ranges over three seeds or more do not touch; better in every seed; too close or too few; nothing to compare."""


class Spread(TypedDict):
    """A figure over seeds: misses count as larger than anything, so that a median may be ``None``."""

    median: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    """In the order of the row's ``seeds``."""


class Key(TypedDict):
    """What is held equal within a group."""

    on: str
    """``simulator`` or ``processes``; runs that are no study may have another runtime."""
    clock: Literal["virtual", "wall"]
    cluster: str
    model: str
    learners: int


class CellResult(TypedDict):
    """One run: what its ``cell.json`` says, and its evaluations."""

    name: str
    path: str
    """Of the run's folder, relative to the study's."""
    strategy: str
    on: str
    clock: str
    cluster: str
    model: str
    learners: int
    seed: int
    rate: float | None
    trial: bool
    regime: str
    """Empty, or why the cell is outside the regime of its paper: then it is shown and not ranked."""
    period: int | None
    """Steps between two rounds of communication, of a strategy that has such."""
    usual_period: int | None
    """What the strategy has by default: more than ``period`` where the budget is too short for it."""
    status: Literal["done", "failed", "diverged", "interrupted"]
    error: str
    scores: dict[str, float]
    seconds: float | None
    """That training took, by the cell's clock."""
    frames: float | None
    frames_per_second: float | None
    reached_seconds: float | None
    """When the target was first seen to be reached; ``None`` is a miss."""
    reached_frames: float | None
    curve: list[Point]
    wer: dict[str, object] | None
    """The object of ``wer.json`` (``wer`` in percent, ``interval``, …), where the run was decoded."""
    remark: str
    """What is wrong with the cell's files, where something is: a missing record, a line cut off."""


class StrategyRow(TypedDict):
    """A strategy in a group: its seeds together."""

    strategy: str
    on: str
    clock: str
    cluster: str
    model: str
    learners: int
    rate: float | None
    seeds: list[int]
    cells: list[str]
    regime: str
    period: int | None
    usual_period: int | None
    statuses: dict[str, int]
    """How many cells are done, failed, diverged, interrupted."""
    hits: int
    """How many seeds reached the target."""
    rank: int | None
    """From 1, by the median time to the target, shared where equal; ``None``: a miss, or outside the regime."""
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
    """The speed-up by the number of learners."""
    throughput_speedup: float | None
    """Of frames a second, over one learner's."""
    throughput_efficiency: float | None
    wer: Spread | None


class Answer(TypedDict):
    """The short answer in words."""

    headline: str
    """One sentence: which strategy, by how much."""
    sentences: list[str]
    """Certainty and qualifications, a sentence each."""
    changes: list[str]
    """What would change the answer, a sentence each."""
    certainty: Certainty
    winner: str | None
    runner_up: str | None
    ratio: float | None
    """The runner-up's median time over the winner's."""


class RowGroup(TypedDict):
    """The strategies under one set of conditions, the best first, unranked ones after them."""

    key: Key
    baseline: str
    """The strategy of the one learner that speed-ups are over."""
    baseline_time: float | None
    rows: list[StrategyRow]
    answer: Answer


class Trials(TypedDict):
    """What was tried before the runs that count, and what was chosen."""

    strategy: str
    on: str
    cluster: str
    model: str
    learners: int
    rates: list[float]
    scores: list[float | None]
    """The target's score of each trial on dev, that it was chosen by; ``None``: diverged, failed or not done."""
    statuses: list[str]
    """What became of each trial, as of a cell."""
    cells: list[str]
    chosen: float | None
    at_edge: bool
    """Whether the chosen rate is the first or the last of the grid: a wider grid might do better."""


class Profile(TypedDict):
    """In what share of the groups a strategy's time is within a factor of the best one's."""

    strategy: str
    clock: str
    factors: list[float]
    shares: list[float]
    area: float
    """Under the profile over the logarithm of the factors, from 0 to 1; 1 is the best in every group."""


class Summary(TypedDict):
    """All that a study says."""

    title: str
    target: Target
    budget: dict[str, float]
    """``frames`` that every run trains."""
    baseline: str
    complete: bool
    """Whether every cell of the matrix has been computed."""
    missing: list[str]
    """Names of cells that are not there yet."""
    answer: Answer
    """Over the whole study: of the group with the most learners and the first cluster, and what others say."""
    groups: list[RowGroup]
    rows: list[StrategyRow]
    trials: list[Trials]
    profiles: list[Profile]
    cells: list[CellResult]
    faults: list[dict[str, str]]
    """``{"cell", "status", "error"}`` of each run that failed, diverged or was interrupted, trials too."""
    notes: list[str]
    """How it was done: budget, tuning, regime, what one should know before believing a figure."""

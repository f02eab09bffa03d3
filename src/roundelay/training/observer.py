"""Observers of a training: they are told of each step and each evaluation, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from roundelay.learner import Learner
from roundelay.runtime import Clock
from roundelay.task import Scores


@dataclass(frozen=True)
class Step:
    """A finished step of one learner."""

    number: int | None
    """The minibatch, numbered over the whole run; ``None``: the learner had none and took part idly."""
    loss: float
    """The loss of the learner's last minibatch."""
    num_learners: int


@dataclass(frozen=True)
class Evaluation:
    """The consensus at a synchronization point, and its scores; equal on all ranks."""

    position: int
    """Minibatches trained so far by all learners."""
    epoch: float
    scores: Scores
    consensus: Tensor
    seconds: float
    """Time since the run began, by ``clock``."""
    clock: Clock


class Observer(Protocol):
    """Simulated learners share one observer; on processes each process has its own."""

    def stepped(self, learner: Learner, step: Step) -> None:
        """Take note of a step of ``learner``, right after it."""

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        """Take note of an evaluation; called on every rank."""

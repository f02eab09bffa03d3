"""What learners do when they meet at the end of a stretch: evaluate the consensus, and save the state of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roundelay.communicator import gather_json
from roundelay.errors import LearnerLost, Mismatch, NumericalError
from roundelay.task import Scores, evaluate
from roundelay.training.budget import SyncInterval
from roundelay.training.recovery import WELCOME
from roundelay.training.snapshot import take

if TYPE_CHECKING:
    from roundelay.training.loop import Training

__all__ = ["arrive", "check_finite", "decide", "evaluate_consensus", "first_cut", "is_finite", "save"]

FIRST_ROUNDS = 8  # until the pace is known, where checkpoints go by minutes
STRETCHING = 8  # by so many times what was trained at most, the next checkpoint is foreseen


async def arrive(training: Training) -> list[int]:
    """Wait until all are here; return what each has trained that would be lost with it.

    That is carried over to the next stretch: who meets does not average, and may be lost right after.
    """
    runtime, world = training.runtime, training.world
    if not runtime.elastic:
        await world.mean(torch.zeros(1))
        return []
    mine = {"waiting": training.welcoming or runtime.has_newcomers(), "unsafe": training.ledger.unsafe}
    everyone = await gather_json(world, mine)
    if any(each["waiting"] for each in everyone):
        raise LearnerLost(WELCOME)
    return sorted(number for each in everyone for number in each["unsafe"]) if world.size > 1 else []


# -- evaluating -------------------------------------------------------------------------------------------------------


async def evaluate_consensus(training: Training, position: int) -> bool:
    """Evaluate the consensus, each learner a share of the held-out minibatches; return whether to stop."""
    learner, task = training.learner, training.task
    takes_part = not (learner.is_server and training.acting is training.warming)
    consensus = await training.acting.consensus(learner) if takes_part else learner.weights
    check_finite(training, consensus, f"the consensus after minibatch {position}")
    shares = range(0) if learner.is_server else range(learner.index, task.held_out_minibatches, training.learners)
    kept = learner.snapshot.clone()
    mine: dict[str, Any] = {"scores": evaluate(task, learner.module, shares, lambda: learner.load(consensus))}
    learner.load(kept)
    if not learner.is_server:
        mine["distance"] = float(torch.linalg.vector_norm(learner.weights - consensus))
        mine["norm"] = float(torch.linalg.vector_norm(consensus))
    if learner.debug:
        mine["sum"], mine["moved"] = float(learner.weights.sum(dtype=torch.float64)), learner.descent_sum
    everyone = await gather_json(training.world, mine)
    _check_conserved(training, everyone)
    training.scores = _mean_scores(everyone)
    if training.world.rank == 0:
        training.runtime.record.write(
            "evaluate",
            training.member,
            training.runtime.now(),
            minibatch=position,
            epoch=position / training.budget.minibatches_per_epoch,
            **training.scores,
        )
    training.evaluated = consensus
    if training.on_scores is not None:
        training.on_scores(training)
    return training.schedule.on_evaluation(training.scores) if training.schedule is not None else False


def _mean_scores(everyone: Sequence[dict[str, Any]]) -> Scores:
    sums: Scores = {}
    for scores in (other["scores"] for other in everyone):
        for name, value in scores.items():
            sums[name] = sums.get(name, 0.0) + value
    frames = sums.pop("frames", 0.0)
    means = {name: value / frames for name, value in sums.items()} if frames else {}
    means["distance"] = max(other["distance"] for other in everyone if "distance" in other)
    return means


def is_finite(vector: Tensor) -> bool:
    """Tell whether all numbers are finite, by one sum where they are."""
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


def check_finite(training: Training, vector: Tensor, what: str) -> None:
    """Raise where weights are not finite."""
    if not is_finite(vector):
        raise NumericalError(f"{training.member}: {what} has weights that are not finite; a lower learning rate may do")


def _check_conserved(training: Training, everyone: Sequence[dict[str, Any]]) -> None:
    """See, in debug mode, that mixing has kept the sum of all learners' weights."""
    if not (training.learner.debug and training.acting.conserves_mean):
        return
    now = sum(other["sum"] for other in everyone)
    moved = sum(other["moved"] for other in everyone)
    start = training.conserved
    if start is not None and abs(now - moved - start) > 1e-4 * max(1.0, abs(now)):
        raise Mismatch(
            f"{type(training.acting).__name__} does not conserve the mean: the weights sum to {now:.9g}, "
            f"steps account for {start + moved:.9g}"
        )
    training.conserved = now - moved


# -- saving -----------------------------------------------------------------------------------------------------------


async def decide(training: Training, stretch: SyncInterval) -> bool:
    """Agree whether the state is to be saved at the end of ``stretch``, and, where minutes count, where to meet next.

    All of us are here when it returns, and what was saved last is on disk everywhere: nothing but plain code may come
    between this and `save`.
    """
    settings, saver, world = training.checkpoint, training.saver, training.world
    if settings is None:
        return False
    if saver is not None:
        saver.wait()
    now = training.runtime.now()
    due = stretch.checkpoint
    if settings.every_minutes is not None:
        due = now - training.saved >= 60.0 * settings.every_minutes
    elif settings.every_frames is None:
        due = saver is not None and saver.due()
    told = torch.tensor([float(due), _foresee(training, stretch, now, due=due)], dtype=torch.float64)
    await world.mean(told, weight=float(world.rank == 0))
    if training.stretch < len(training.stretches) and 0 < told[1] < training.stretches[training.stretch].end:
        training.cut(int(told[1]))
    if bool(told[0]):
        training.saved = now
    return bool(told[0])


def save(training: Training, position: int) -> None:
    """Copy all state, and have it written while training goes on."""
    check_finite(training, training.learner.weights, f"after minibatch {position} it")
    if training.world.rank == 0:
        training.runtime.record.write("checkpoint", training.member, training.runtime.now(), minibatch=position)
    if training.saver is not None:
        training.saver.submit(take(training, position))


def first_cut(training: Training, position: int) -> None:
    """Where checkpoints go by minutes, meet soon after ``position``, to see how fast it goes."""
    if training.checkpoint is not None and training.checkpoint.every_minutes is not None:
        cut = position + FIRST_ROUNDS * training.learners
        if training.stretch < len(training.stretches) and cut < training.stretches[training.stretch].end:
            training.cut(cut)


def _foresee(training: Training, stretch: SyncInterval, now: float, *, due: bool) -> int:
    """Return where the next checkpoint is due by the pace of this stretch; 0: it does not go by minutes."""
    assert training.checkpoint is not None
    if training.checkpoint.every_minutes is None:
        return 0
    pace = (stretch.end - stretch.begin) / max(1e-9, now - training.began)
    left = 60.0 * training.checkpoint.every_minutes - (0.0 if due else now - training.saved)
    ahead = min(pace * left, STRETCHING * (stretch.end - stretch.begin))
    rounds = max(1, math.ceil(ahead / training.learners))
    return stretch.end + rounds * training.learners

"""Evaluation of the consensus at a synchronization point, each learner a share of the held-out minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from roundelay.communicator import gather_json
from roundelay.errors import Mismatch
from roundelay.task import Scores, Task, evaluate
from roundelay.training.guard import check_finite
from roundelay.training.member import Member
from roundelay.training.observer import Evaluation
from roundelay.training.rank_state import RankState


@dataclass
class Evaluator:
    """Evaluates the consensus together with all ranks."""

    member: Member
    task: Task
    minibatches_per_epoch: int
    scores: Scores = field(default_factory=dict)
    """Of the last evaluation."""
    _expected_sum: float | None = None  # what all weights sum to without steps; debug mode only
    _strategy_starts: int = -1  # of the member, when that was summed up

    async def evaluate(self, position: int) -> Evaluation:
        """Evaluate the consensus of all ranks after minibatch ``position``."""
        member, learner, task = self.member, self.member.learner, self.task
        takes_part = not (learner.is_server and member.in_warmup)
        consensus = await member.active_strategy.consensus(learner) if takes_part else learner.weights
        check_finite(member, consensus, f"the consensus after minibatch {position}")
        share = range(0) if learner.is_server else range(learner.index, task.held_out_minibatches, member.num_learners)
        kept = learner.snapshot.clone()
        mine: dict[str, Any] = {"scores": evaluate(task, learner.module, share, lambda: learner.load(consensus))}
        learner.load(kept)
        if not learner.is_server:
            mine["distance"] = float(torch.linalg.vector_norm(learner.weights - consensus))
            mine["norm"] = float(torch.linalg.vector_norm(consensus))
        if learner.debug:
            mine["sum"], mine["moved"] = float(learner.weights.sum(dtype=torch.float64)), learner.descent_sum
        everyone = await gather_json(member.world, mine)
        self._check_sum(everyone)
        self.scores = _mean_scores(everyone)
        epoch = position / self.minibatches_per_epoch
        if member.world.rank == 0:
            member.write("evaluate", minibatch=position, epoch=epoch, **self.scores)
        now, clock = member.runtime.now(), member.runtime.clock
        return Evaluation(position, epoch, self.scores, consensus, now, clock)

    def _check_sum(self, everyone: Sequence[dict[str, Any]]) -> None:
        """Check, in debug mode, that mixing has kept the sum of all learners' weights."""
        member, strategy = self.member, self.member.active_strategy
        if not (member.learner.debug and strategy.conserves_mean):
            return
        now = sum(other["sum"] for other in everyone)
        moved = sum(other["moved"] for other in everyone)
        start = self._valid_sum()
        if start is not None and abs(now - moved - start) > 1e-4 * max(1.0, abs(now)):
            raise Mismatch(
                f"{type(strategy).__name__} does not conserve the mean: the weights sum to {now:.9g}, "
                f"steps account for {start + moved:.9g}"
            )
        self._expected_sum, self._strategy_starts = now - moved, member.strategy_starts

    def _valid_sum(self) -> float | None:
        """Return the sum, unless the strategy was started again since: that may change the weights."""
        return self._expected_sum if self._strategy_starts == self.member.strategy_starts else None

    def capture(self, into: RankState) -> None:
        """Add the last scores and the sum."""
        into.state |= {"scores": self.scores, "start": self._valid_sum()}

    def restore(self, saved: RankState) -> None:
        """Restore the last scores and the sum."""
        self.scores = saved.state.get("scores", {})
        self._expected_sum, self._strategy_starts = saved.state.get("start"), self.member.strategy_starts


def _mean_scores(everyone: Sequence[dict[str, Any]]) -> Scores:
    sums: Scores = {}
    for scores in (other["scores"] for other in everyone):
        for name, value in scores.items():
            sums[name] = sums.get(name, 0.0) + value
    frames = sums.pop("frames", 0.0)
    means = {name: value / frames for name, value in sums.items()} if frames else {}
    means["distance"] = max(other["distance"] for other in everyone if "distance" in other)
    return means

"""A task whose gradients of some minibatches are not finite."""

from __future__ import annotations

from typing import Any


class Exploding:
    """A task whose loss is not finite at one minibatch, as long as the learning rate is what it was."""

    def __init__(self, job: Any, minibatches: set[tuple[int, int]], below: float = 1.0) -> None:
        self.gradient, self.minibatches, self.below = job.task.gradient, minibatches, below
        load = job.task.load
        self.now = (0, 0)

        def loading(epoch: int, index: int) -> Any:
            self.now = (epoch, index)
            return load(epoch, index)

        job.task.load, job.task.gradient = loading, self.explode

    def explode(self, learner: Any, batch: Any) -> float:
        loss = float(self.gradient(learner, batch))
        if self.now in self.minibatches and learner.lr_factor >= self.below:
            learner.grad.fill_(float("nan"))
            return float("nan")
        return loss

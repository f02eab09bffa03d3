"""A strategy of your own: learners average their weights after every second step."""

from dataclasses import dataclass

import roundelay


@dataclass
class AverageOften(roundelay.Strategy):
    period: int = 2

    def setup(self, learner):
        self.steps = 0

    async def step(self, learner):
        learner.descend(learner.grad)
        self.steps += 1
        if self.steps % self.period == 0:
            await learner.comm.mean(learner.weights)

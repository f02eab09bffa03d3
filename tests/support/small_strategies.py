"""Four strategies of a few lines, one of each kind: lockstep, in blocks, asynchronous in pairs, with a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.learner import Learner
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Asynchronous, Strategy


@dataclass
class Gossip(Asynchronous):
    """A small asynchronous strategy: pull towards the next learner by requests."""

    conserves_mean: ClassVar[bool] = True
    share: float = 1 / 3

    def overlap(self, learner: Learner) -> None:
        self.averaging = learner.comm.request(learner.weights, to=(learner.comm.rank + 1) % learner.comm.size)

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        difference = self.share * (learner.weights - theirs)
        learner.weights.sub_(difference)
        return difference

    async def step(self, learner: Learner) -> None:
        learner.weights.add_(await self.averaging)
        learner.descend()


@dataclass
class Server(Asynchronous):
    """A small parameter server."""

    servers: int = 1

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        learner.descend(theirs)
        return learner.weights

    async def step(self, learner: Learner) -> None:
        learner.weights.copy_(await learner.comm.request(learner.grad, to=0))

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.broadcast(learner.weights.clone(), root=0)


STRATEGIES: list[Strategy] = [Synchronous(), Averaging(period=3), Gossip(), Server()]

"""Asynchronous SGD with a parameter server, also called Downpour: push a gradient, pull the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.communicator import DeferredReply
from roundelay.config import Count, Depth, NonNegative
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategy import Asynchronous


@dataclass
class ASGD(Asynchronous):
    r"""Push the gradient to the server, which takes the step, and pull its new weights.

    Server: $w \gets w - \gamma\, g_l(w_{k-\tau})$ for each gradient that arrives; learner: $w_l \gets w$.  The
    staleness $\tau$ is the number of other gradients applied between the pull and the push.

    The server has the optimizer, its momentum, its schedule and the model; several ``servers`` have a part of the
    vector each.  A learner that is ``staleness_bound`` pushes ahead of the slowest waits for it (Ho et al., 2013,
    bounded staleness; in Li et al., 2017, arXiv 1703.05880, a soft barrier after so many updates).  With ``damping``
    the rate is divided by $\max(1, \tau)^{damping}$; 1 is the rule of Zhang et al., 2016 (arXiv 1511.05950).

    Dean et al., 2012, "Large scale distributed deep networks" (Downpour SGD, with a push and a pull at every step).
    Departures: any optimizer instead of Adagrad; the warm start is the loop's ``warmup``.
    """

    state: ClassVar[tuple[str, ...]] = ("updates", "pulled")
    steps_on_server: ClassVar[bool] = True

    servers: Depth = 1
    staleness_bound: Count | None = None  # pushes ahead of the slowest learner; by default there is no bound
    damping: NonNegative = 0.0

    def owned_parts(self, learner: Learner) -> Sequence[slice] | None:
        return [self.parts[learner.comm.rank]] if learner.is_server else []

    def setup(self, learner: Learner) -> None:
        self.parts = learner.even_parts(self.servers)
        if any(part.start == part.stop for part in self.parts):
            raise SettingsError(f"strategy.servers = {self.servers} is more than the tensors that the model has")
        self.updates = 0
        self.pulled = torch.zeros(learner.comm.size, dtype=torch.int64)  # by rank: the updates when it last pulled
        self.pushes = [0.0] * (learner.comm.size - self.servers)  # by learner, since the last barrier; infinite at it
        self.waiting: list[tuple[int, int, DeferredReply]] = []

    async def step(self, learner: Learner) -> None:
        if self.servers > 1:
            learner.clip_grad_(learner.grad)  # as one vector: a server has only its part
        if learner.frames:
            await self.push(learner, learner.grad)

    async def push(self, learner: Learner, x: Tensor) -> None:
        """Send each server its part of ``x``, and copy the weights that it replies with."""
        x[learner.tail :].div_(len(self.pushes))  # N changes of the same old buffers count as their mean
        replies = [learner.comm.request(learner.outgoing(x, part), to=server) for server, part in enumerate(self.parts)]
        staleness = 0.0
        for part, reply in zip(self.parts, replies, strict=True):
            new = await reply
            learner.weights[part].copy_(new[:-1])
            staleness = max(staleness, float(new[-1:]))
        learner.log("staleness", staleness)

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        if not theirs.numel():  # the learner waits at a barrier
            self.count_push(learner, source, math.inf)
            return theirs
        staleness = self.updates - int(self.pulled[source])
        self.apply(learner, theirs, self.parts[learner.comm.rank], staleness)
        self.updates += 1
        reply = DeferredReply()
        self.waiting.append((source, staleness, reply))
        self.count_push(learner, source, self.pushes[source - self.servers] + 1)
        return reply

    def apply(self, learner: Learner, theirs: Tensor, part: slice, staleness: int) -> None:
        """Take the step on the server, along the gradient ``theirs``."""
        learner.grad[part].copy_(learner.incoming(theirs, part))
        learner.lr_factor /= max(1, staleness) ** self.damping
        learner.descend(learner.grad, part)
        learner.set_position(learner.minibatch + 1)

    def count_push(self, learner: Learner, source: int, pushes: float) -> None:
        """Count a push; reply to all learners that are no longer too far ahead."""
        self.pushes[source - self.servers] = pushes
        slowest, waiting, self.waiting = min(self.pushes), self.waiting, []
        for rank, staleness, reply in waiting:
            ahead = self.pushes[rank - self.servers] - slowest
            if self.staleness_bound is not None and ahead >= self.staleness_bound:
                self.waiting.append((rank, staleness, reply))
                continue
            self.pulled[rank] = self.updates
            weights = learner.weights[self.parts[learner.comm.rank]]
            reply.send(torch.cat([weights, weights[:1].clone().fill_(staleness)]))
        if slowest == math.inf:
            self.pushes = [0.0] * len(self.pushes)  # all have come to the barrier: count from 0 again

    async def before_barrier(self, learner: Learner) -> None:
        if self.staleness_bound is not None:
            for server in range(self.servers):
                await learner.comm.request(learner.weights[:0], to=server)

    async def consensus(self, learner: Learner) -> Tensor:
        model = learner.weights.clone()
        for server, part in enumerate(self.parts):
            await learner.comm.broadcast(model[part], root=server)
        return model

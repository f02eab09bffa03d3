"""A member of a run that is alone: what needs one can be called step by step, without a training loop."""

from __future__ import annotations

import io
import json
from typing import Any

import torch
from torch import nn

from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategy import Strategy
from roundelay.task import Schedule
from roundelay.training.member import Member


class LoneMember(Member):
    """A member that is alone in its membership, with a record in memory."""

    def __init__(self, strategy: Strategy, module: nn.Module | None = None, schedule: Schedule | None = None) -> None:
        self.text = io.StringIO()
        self.alone = LocalRuntime(Record(self.text, clock="wall"))
        module = module if module is not None else nn.Linear(2, 1)
        learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.5))
        super().__init__(learner, strategy, self.alone, schedule=schedule)
        self.alone.run(self._enter())

    async def _enter(self) -> None:
        self.enter(await self.alone.rendezvous(self.learner, {}, lambda *_: {}))

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has written to the record."""
        return [json.loads(line) for line in self.text.getvalue().splitlines()]

"""Timing only: compressed gradients that are as large as the real ones would be, and compress nothing."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.planning.placeholders import LAYERS, SizeOnlyTensor
from roundelay.strategies.compression import Compression, OneBit, PowerSGD, TopK
from roundelay.strategies.hierarchical import Hierarchical
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy

__all__ = ["StandInCompression", "without_arithmetic"]

HEADER_BYTES = 8  # the sender's weight


@dataclass(frozen=True, kw_only=True)
class StandInCompression(Compression):
    """Sends messages of the size that ``kind`` makes of a model of equal square layers."""

    kind: Compression

    def gathered_bytes(self, parameters: int) -> int:
        """Return the size of the message that everyone sends to everyone; 0: there is none."""
        if isinstance(self.kind, OneBit):
            rows = LAYERS * math.isqrt(parameters // LAYERS)
            return HEADER_BYTES + 2 * 4 * rows + -(-parameters // 8)
        if isinstance(self.kind, TopK):
            return HEADER_BYTES + 8 * max(1, round(self.kind.fraction * parameters))
        return 0

    def averaged_bytes(self, parameters: int) -> list[int]:
        """Return the sizes of the vectors that are averaged in turn."""
        if not isinstance(self.kind, PowerSGD):
            return []
        width = math.isqrt(parameters // LAYERS)
        if 2 * self.kind.rank >= width:
            return [4 * parameters]  # a product would not be smaller
        return [4 * self.kind.rank * width * LAYERS] * 2

    async def mean(self, learner: Learner, residual: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Send as much as the real one would."""
        if size := self.gathered_bytes(learner.tail):
            await learner.comm.gather(_stand_in(size))
        for size in self.averaged_bytes(learner.tail):
            await learner.comm.mean(_stand_in(size))
        return residual, factors


def _stand_in(nbytes: int) -> Tensor:
    return cast("Tensor", SizeOnlyTensor(-(-nbytes // 4)))


def without_arithmetic(strategy: Strategy) -> Strategy:
    """Return ``strategy``, its compression replaced by one that only has a size."""
    if isinstance(strategy, Hierarchical):
        return dataclasses.replace(strategy, outer=without_arithmetic(strategy.outer))
    if isinstance(strategy, Synchronous) and strategy.compression is not None:
        kind = strategy.compression
        if isinstance(kind, StandInCompression):
            return strategy
        if not isinstance(kind, OneBit | TopK | PowerSGD):
            raise SettingsError(f"how much compression {type(kind).__name__} sends is not known: it cannot be planned")
        return dataclasses.replace(strategy, compression=StandInCompression(kind=kind))
    return strategy

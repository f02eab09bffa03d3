"""Compressed gradients of the right size that compress nothing, for timing only."""

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

HEADER_BYTES = 8  # the sender's weight


@dataclass(frozen=True, kw_only=True)
class PlaceholderCompression(Compression):
    """Sends messages of the size that ``kind`` sends for a model of equal square layers."""

    kind: Compression

    def gathered_bytes(self, parameters: int) -> int:
        """Return the size of the message that each rank gathers; 0 if there is none."""
        if isinstance(self.kind, OneBit):
            rows = LAYERS * math.isqrt(parameters // LAYERS)
            return HEADER_BYTES + 2 * 4 * rows + -(-parameters // 8)
        if isinstance(self.kind, TopK):
            return HEADER_BYTES + 8 * max(1, round(self.kind.fraction * parameters))
        return 0

    def averaged_bytes(self, parameters: int) -> list[int]:
        """Return the sizes of the vectors that are averaged one after another."""
        if not isinstance(self.kind, PowerSGD):
            return []
        width = math.isqrt(parameters // LAYERS)
        if 2 * self.kind.rank >= width:
            return [4 * parameters]  # a product would not be smaller
        return [4 * self.kind.rank * width * LAYERS] * 2

    async def mean(self, learner: Learner, residual: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Send as many bytes as ``kind`` does."""
        if size := self.gathered_bytes(learner.tail):
            await learner.comm.gather(_placeholder(size))
        for size in self.averaged_bytes(learner.tail):
            await learner.comm.mean(_placeholder(size))
        return residual, factors


def _placeholder(nbytes: int) -> Tensor:
    return cast("Tensor", SizeOnlyTensor(-(-nbytes // 4)))


def without_arithmetic(strategy: Strategy) -> Strategy:
    """Return ``strategy`` with its compression replaced by a placeholder."""
    if isinstance(strategy, Hierarchical):
        return dataclasses.replace(strategy, outer=without_arithmetic(strategy.outer))
    if isinstance(strategy, Synchronous) and strategy.compression is not None:
        kind = strategy.compression
        if isinstance(kind, PlaceholderCompression):
            return strategy
        if not isinstance(kind, OneBit | TopK | PowerSGD):
            raise SettingsError(f"compression {type(kind).__name__} cannot be planned: its message size is unknown")
        return dataclasses.replace(strategy, compression=PlaceholderCompression(kind=kind))
    return strategy

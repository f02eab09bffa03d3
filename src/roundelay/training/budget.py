"""The minibatches of a run, and the synchronization points that divide them into intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from roundelay.config import Count, Settings

__all__ = ["Budget", "SyncInterval", "untrained"]


@dataclass(frozen=True)
class SyncInterval:
    """The minibatches between two synchronization points, numbered over the whole run."""

    begin: int
    end: int
    warmup: bool = False
    evaluate: bool = False
    checkpoint: bool = False


@dataclass(frozen=True)
class Budget(Settings):
    """The minibatches of a run; they belong to the cluster, not to a learner.

    Minibatch ``k`` has index ``k % minibatches_per_epoch`` in epoch ``k // minibatches_per_epoch``, on any learner.
    With ``shards``, the number of private shards, index ``i`` of an epoch belongs to shard ``i % shards``.
    """

    minibatches_per_epoch: Count
    total: Count
    evaluate_every: Count | None = None
    """Synchronize and evaluate after so many minibatches; by default after each epoch."""
    warmup: int = 0
    """Number of minibatches that are trained synchronously first."""
    shards: int | None = None
    checkpoint_every: Count | None = None
    """Synchronize and save the state of all after so many minibatches."""

    def intervals(self) -> list[SyncInterval]:
        """Divide the run at its synchronization points."""
        warmup = min(self.warmup, self.total)
        looks = set(range(0, self.total, self.evaluate_every or self.minibatches_per_epoch)) - {0} | {self.total}
        saves = set(range(0, self.total, self.checkpoint_every)) if self.checkpoint_every else set()
        points = sorted({0, warmup, self.total} | looks | saves | set(range(0, self.total, self.minibatches_per_epoch)))
        return [
            SyncInterval(a, b, warmup=b <= warmup, evaluate=b in looks, checkpoint=b in saves)
            for a, b in pairwise(points)
        ]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of minibatch ``number`` and its index in that epoch."""
        return divmod(number, self.minibatches_per_epoch)

    def shard_of(self, number: int) -> int:
        """Return the private shard that minibatch ``number`` belongs to."""
        return number % self.minibatches_per_epoch % (self.shards or 1)


def untrained(ranges: Iterable[tuple[int, int]], trained: Iterable[Iterable[int]]) -> list[tuple[int, int]]:
    """Return the parts of ``ranges``, each from one number to before another, that are in none of ``trained``."""
    done = sorted({number for numbers in trained for number in numbers})
    left = []
    for begin, end in ranges:
        edges = [begin - 1, *(number for number in done if begin <= number < end), end]
        left += [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
    return left

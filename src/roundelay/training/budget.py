"""Which minibatches there are, who takes which, and where learners meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from roundelay.errors import SettingsError

__all__ = ["Budget", "Claim", "ClaimQueue", "SyncInterval", "untrained"]


@dataclass(frozen=True)
class SyncInterval:
    """The minibatches between two meeting points, numbered over the whole run."""

    begin: int
    end: int
    warmup: bool
    evaluate: bool
    checkpoint: bool = False


@dataclass(frozen=True)
class Budget:
    """The minibatches of a run; they belong to the cluster, not to a learner.

    Minibatch ``k`` is number ``k % per_epoch`` of epoch ``k // per_epoch``, whoever trains it.  With ``shards``, the
    number of private shards, minibatch ``k`` of an epoch belongs to shard ``k % shards``.
    """

    minibatches_per_epoch: int
    total: int
    evaluate_every: int | None = None
    """Meet and evaluate after so many minibatches; by default after each epoch."""
    warmup: int = 0
    """Train so many minibatches synchronously first."""
    shards: int | None = None
    checkpoint_every: int | None = None
    """Meet and save the state of all after so many minibatches."""

    def __post_init__(self) -> None:
        for name in ("minibatches_per_epoch", "total"):
            if getattr(self, name) < 1:
                raise SettingsError(f"budget: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("evaluate_every", "checkpoint_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingsError(f"budget: {name} must be at least 1, not {value}")

    def intervals(self) -> list[SyncInterval]:
        """Cut the run at its meeting points."""
        warmup = min(self.warmup, self.total)
        looks = set(range(0, self.total, self.evaluate_every or self.minibatches_per_epoch)) - {0} | {self.total}
        saves = set(range(0, self.total, self.checkpoint_every)) if self.checkpoint_every else set()
        cuts = sorted({0, warmup, self.total} | looks | saves | set(range(0, self.total, self.minibatches_per_epoch)))
        return [
            SyncInterval(a, b, warmup=b <= warmup, evaluate=b in looks, checkpoint=b in saves)
            for a, b in pairwise(cuts)
        ]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of minibatch ``number`` and its index in that epoch."""
        return divmod(number, self.minibatches_per_epoch)


@dataclass(frozen=True)
class Claim:
    """What a learner is to do next: train minibatch ``number``, or, where there is none for it, take part idly."""

    number: int | None
    position: int
    """Where the run stands, in minibatches, the same for all that step together; the learning rate goes by it."""


class ClaimQueue:
    """Who takes which of the minibatches ``left`` of a stretch.

    ``groups`` are the learners that step together.  From a common budget a group takes as many minibatches as it has
    members, one each; the last round may leave some idle.  With private shards each learner takes its own, and idles
    while others of its group still have some.
    """

    def __init__(self, left: Sequence[int], groups: Sequence[Sequence[int]], learner: int, budget: Budget) -> None:
        self.left = left
        likely = groups[min(learner, len(groups) - 1)]
        self.group = likely if learner in likely else next(group for group in groups if learner in group)
        self.seat = self.group.index(learner)
        self.alone = len(groups) == 1
        self.round = 0
        self.shards: list[list[int]] | None = None
        if budget.shards is not None:
            learners = sum(len(group) for group in groups)
            owned: list[list[int]] = [[] for _ in range(learners)]
            for number in left:
                owned[number % budget.minibatches_per_epoch % budget.shards % learners].append(number)
            self.shards = [owned[member] for member in self.group]

    @property
    def counted(self) -> bool:
        """Whether rounds are drawn from the cluster's common counter rather than known to all."""
        return not self.alone and self.shards is None

    def take(self, base: int) -> Claim | None:
        """Return what we do in the round that begins at ``base`` in the list; ``None``: the stretch is spent."""
        self.round += 1
        if self.shards is not None:
            rest = [shard[base // len(self.group)] for shard in self.shards if base // len(self.group) < len(shard)]
            if not rest:
                return None
            mine = self.shards[self.seat]
            turn = base // len(self.group)
            return Claim(mine[turn] if turn < len(mine) else None, position=min(rest))
        if base >= len(self.left):
            return None
        index = base + self.seat
        return Claim(self.left[index] if index < len(self.left) else None, position=self.left[base])

    def next_base(self) -> int:
        """Return where our next round begins, where that is known without asking."""
        return self.round * len(self.group)


def untrained(ranges: Iterable[tuple[int, int]], trained: Iterable[Iterable[int]]) -> list[tuple[int, int]]:
    """Return what nobody has trained of the minibatches in ``ranges``, each from one number to before another."""
    done = sorted({number for numbers in trained for number in numbers})
    left = []
    for begin, end in ranges:
        edges = [begin - 1, *(number for number in done if begin <= number < end), end]
        left += [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
    return left

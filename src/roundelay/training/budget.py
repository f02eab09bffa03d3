"""The minibatches of a run: how many, where all synchronize, what remains, and which learner trains which."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch

from roundelay.communicator import Communicator
from roundelay.config import Count, Natural, Settings
from roundelay.errors import SettingsError
from roundelay.training.member import Member
from roundelay.training.pace import Pace
from roundelay.training.rank_state import RankState

MOST_POINTS = 1_000_000  # where a run synchronizes: all are in a list
UNCHANGED = 4  # half rounds of the others in which they claimed nothing: then we do not wait for them
ADMIT_INTERVAL = 10  # steps, or claims, between two checks for newcomers


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
    warmup: Natural = 0
    """Number of minibatches that are trained synchronously first."""
    shards: Count | None = None
    checkpoint_every: Count | None = None
    """Synchronize and save the state of all after so many minibatches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        between = (self.minibatches_per_epoch, self.evaluate_every, self.checkpoint_every)
        if (points := sum(self.total // each for each in between if each is not None)) > MOST_POINTS:
            raise SettingsError(
                f"the budget of {self.total} minibatches has {points} epochs, evaluations and checkpoints; use a "
                f"smaller budget, or fewer: at most {MOST_POINTS}"
            )

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


@dataclass(frozen=True)
class Claim:
    """What a learner does next: train minibatch ``number``, or take part idly if that is ``None``."""

    number: int | None
    position: int
    """The position in the run, in minibatches, equal for all that step together; it sets the learning rate."""


class ClaimQueue:
    """Which learner trains which of the minibatches ``left`` of an interval.

    ``groups`` are the learners that step together.  From a common budget a group takes as many minibatches as it has
    members, one each; the last round may leave some idle.  With ``shard_of``, each learner takes the minibatches of its
    own shard, and idles while others of its group still have some.
    """

    def __init__(
        self,
        left: Sequence[int],
        groups: Sequence[Sequence[int]],
        learner: int,
        shard_of: Callable[[int], int] | None = None,
    ) -> None:
        self.left = left
        likely = groups[min(learner, len(groups) - 1)]
        self.group = likely if learner in likely else next(group for group in groups if learner in group)
        self.group_rank = self.group.index(learner)
        self.alone = len(groups) == 1
        self.round = 0
        self.shards: list[list[int]] | None = None
        if shard_of is not None:
            learners = sum(len(group) for group in groups)
            owned: list[list[int]] = [[] for _ in range(learners)]
            for number in left:
                owned[shard_of(number) % learners].append(number)
            self.shards = [owned[member] for member in self.group]

    @property
    def counted(self) -> bool:
        """Whether rounds are taken from the cluster's common counter rather than known to all."""
        return not self.alone and self.shards is None

    def take(self, base: int) -> Claim | None:
        """Return our claim in the round that begins at ``base`` in the list; ``None``: the interval is used up."""
        self.round += 1
        if self.shards is not None:
            turn = base // len(self.group)
            rest = [shard[turn] for shard in self.shards if turn < len(shard)]
            if not rest:
                return None
            mine = self.shards[self.group_rank]
            return Claim(mine[turn] if turn < len(mine) else None, position=min(rest))
        if base >= len(self.left):
            return None
        index = base + self.group_rank
        return Claim(self.left[index] if index < len(self.left) else None, position=self.left[base])

    def next_base(self) -> int:
        """Return where our next round begins, if that is known without the counter."""
        return self.round * len(self.group)


class Agenda:
    """A run's intervals, the current one, and what remains of it.

    ``shard_of`` returns the private shard of a minibatch; without it, all learners claim from a common list.
    """

    def __init__(
        self, member: Member, intervals: Sequence[SyncInterval], shard_of: Callable[[int], int] | None = None
    ) -> None:
        self._member, self._shard_of = member, shard_of
        self.intervals = list(intervals)
        self.interval_index = 0
        self.remaining = [(self.intervals[0].begin, self.intervals[0].end)]  # when this membership began
        self.pace = Pace()
        self._evaluates = True  # whether all meet at the end of an interval to be evaluated: not so in a user loop
        self.admitting = False  # whether this rank goes to the synchronization point early, to admit newcomers

    @property
    def done(self) -> bool:
        """Whether no interval is left."""
        return self.interval_index == len(self.intervals)

    @property
    def current(self) -> SyncInterval:
        """The current interval, or the last one if none is left."""
        return self.intervals[min(self.interval_index, len(self.intervals) - 1)]

    # -- intervals ----------------------------------------------------------------------------------------------

    def add_sync_point(self, position: int) -> None:
        """Divide the interval that ``position`` is inside of."""
        for index, whole in enumerate(self.intervals):
            if whole.begin < position < whole.end:
                before = dataclasses.replace(whole, end=position, evaluate=False, checkpoint=False)
                self.intervals[index : index + 1] = [before, dataclasses.replace(whole, begin=position)]
                return

    def advance(self, *, stop: bool = False) -> None:
        """Go to the next interval, or, to ``stop`` the run, behind the last."""
        self.interval_index = len(self.intervals) if stop else self.interval_index + 1

    def start_interval(self, unsafe: Sequence[int] = ()) -> None:
        """Start this interval; also list the minibatches of earlier ones that are still ``unsafe``."""
        now = self.intervals[self.interval_index : self.interval_index + 1]
        self.remaining = [*((number, number + 1) for number in unsafe), *((each.begin, each.end) for each in now)]
        self._member.tracker.begin(keep=bool(unsafe))

    def continue_at(
        self, interval_index: int, remaining: Sequence[tuple[int, int]], intervals: Sequence[SyncInterval] = ()
    ) -> None:
        """Continue in an interval of which all minibatches are trained but the ``remaining``.

        ``intervals`` are those of another rank, if checkpoints have divided some of them.
        """
        self.intervals = list(intervals) or self.intervals
        self.interval_index, self.remaining = interval_index, list(remaining)
        self.pace = Pace()
        self._member.tracker.begin()

    def append(self, minibatches: int) -> int:
        """Add an interval of so many minibatches and start it; return the number of its first."""
        self._evaluates = False
        first = self.intervals[-1].end
        self.intervals.append(SyncInterval(first, first + minibatches))
        self.interval_index = len(self.intervals) - 1
        self.start_interval()
        self.hand_out(range(first, first + minibatches))
        return first

    def restart(self, minibatches: int) -> None:
        """Replace all intervals by one of so many minibatches that are trained already; `append` adds others."""
        self.intervals, self.interval_index = [SyncInterval(0, minibatches)], 0

    def extend_last(self, end: int) -> None:
        """Let the last interval end at ``end``, if that is later: private loaders gave more minibatches."""
        last = self.intervals[-1]
        self.intervals[-1] = dataclasses.replace(last, end=max(last.end, end))

    def rest(self) -> None:
        """Come to rest between two loops of a user: all that was trained is in the consensus, and nothing remains.

        Who is at rest counts as further than one that is not yet: by an interval without minibatches.
        """
        end = self.intervals[-1].end
        self.intervals.append(SyncInterval(end, end))
        self.interval_index, self.remaining = len(self.intervals), []
        self._member.tracker.begin()

    # -- claims -------------------------------------------------------------------------------------------------

    def hand_out_remaining(self) -> None:
        """Hand out what remains of the current interval."""
        ranges = [range(begin, end) for begin, end in self.remaining]
        self.hand_out(ranges[0] if len(ranges) == 1 else list(chain.from_iterable(ranges)))

    def hand_out_interval(self) -> None:
        """Hand out the whole current interval, if there is one."""
        if not self.done:
            self.hand_out(range(self.current.begin, self.current.end))

    def hand_out(self, left: Sequence[int]) -> None:
        """Hand out these minibatches from now on."""
        member, learner = self._member, self._member.learner
        groups = member.active_strategy.lockstep_groups(member.num_learners)
        self._counter, self.admitting = f"claimed {member.generation} {self.interval_index}", False
        if learner.is_server and not self.done:
            learner.set_position(self.current.end - len(left))
        self._claims = ClaimQueue(left, groups, 0 if learner.is_server else learner.index, self._shard_of)
        self._group: Communicator | None = None
        self.pace.start_interval()
        if self._claims.counted and member.num_learners > len(groups):
            self._group = member.world.split(member.lockstep_ranks())

    @property
    def left(self) -> Sequence[int]:
        """The minibatches that were handed out for claims when this interval or membership began."""
        return self._claims.left

    async def claim(self) -> Claim | None:
        """Take the next minibatch of the cluster's common budget; ``None``: the interval is used up."""
        claims, member = self._claims, self._member
        self.admitting = await self._should_admit()
        if not claims.counted:
            return claims.take(claims.next_base()) if not self.admitting else None
        base, size = 0, len(claims.group)
        if claims.group_rank == 0:
            if self._evaluates:
                await self._leave_to_others(member.num_learners - size)
            base = await member.runtime.fetch_add(self._counter, size)
            self.pace.claimed(base, size, len(claims.left), member.runtime.now())
            if member.order is not None:
                base = await member.order.claimed(base)
        if self._group is not None and size > 1:
            base = int(await self._group.broadcast(torch.tensor([base]), root=0))
        return claims.take(base)

    async def _leave_to_others(self, others: int) -> None:
        """Wait while others will finish all that is left sooner than we would finish one; they claim it meanwhile."""
        runtime, before, unchanged = self._member.runtime, -1, 0
        self.pace.ready(runtime.now())
        if self.pace.seconds and not self.pace.others_rate:  # after our first minibatch
            self.pace.saw(await runtime.fetch_add(self._counter, 0), len(self._claims.left), runtime.now())
        while self.pace.is_slow(others) and unchanged < UNCHANGED:
            claimed = await runtime.fetch_add(self._counter, 0)
            left = len(self._claims.left) - claimed
            seconds = self.pace.seconds_left(left, others)
            if left <= 0 or not seconds:
                return
            before, unchanged = claimed, unchanged + 1 if claimed == before else 0
            await runtime.sleep(seconds)

    async def _should_admit(self) -> bool:
        """Return whether to admit newcomers now, if that can be known without a barrier.

        All that step together get the same reply.  With a common counter, the rank that sees a newcomer claims all
        remaining minibatches: the others get none and go to the synchronization point.
        """
        claims, runtime = self._claims, self._member.runtime
        step = self._member.active_strategy.join_interval
        every = step * -(-ADMIT_INTERVAL // step)
        if not runtime.elastic or claims.round == 0 or claims.round % every:
            return False
        if claims.counted:
            if claims.group_rank or not runtime.has_newcomers():
                return False
            await runtime.fetch_add(self._counter, len(claims.left))
            return True
        return claims.alone and runtime.has_newcomers(f"{self.interval_index} {claims.round}")

    # -- checkpoints --------------------------------------------------------------------------------------------

    def capture(self, into: RankState) -> None:
        """Add whether the run is done, and our pace; the position is the checkpoint's own."""
        into.state |= {"done": self.done, "pace": self.pace.state}

    def restore_pace(self, saved: RankState) -> None:
        """Continue at the pace of a checkpoint of this rank."""
        self.pace = Pace(saved.state.get("pace", ()))

    def restore_position(self, position: int, *, done: bool) -> None:
        """Go to the interval after a checkpoint at ``position``; ``done``: the run had ended there."""
        if done or position >= self.intervals[-1].end:
            self.interval_index = len(self.intervals)
            return
        self.add_sync_point(position)
        self.interval_index = next(k for k, each in enumerate(self.intervals) if each.end > position)


def untrained(ranges: Iterable[tuple[int, int]], trained: Iterable[Iterable[int]]) -> list[tuple[int, int]]:
    """Return the parts of ``ranges``, each from one number to before another, that are in none of ``trained``."""
    done = sorted({number for numbers in trained for number in numbers})
    left = []
    for begin, end in ranges:
        edges = [begin - 1, *(number for number in done if begin <= number < end), end]
        left += [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
    return left

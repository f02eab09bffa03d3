"""Every minibatch is trained exactly once, whoever takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import nn

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.blocking import run_blocking
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies import ADPSGD, Synchronous
from roundelay.strategy import Strategy
from roundelay.training.budget import Agenda, Budget, ClaimQueue, SyncInterval, untrained
from roundelay.training.member import Member
from roundelay.training.rank_state import RankState


def everyone_takes(left: Sequence[int], groups: list[list[int]], budget: Budget) -> dict[int, list[int | None]]:
    """Let all learners take their minibatches, in rounds where they know them, from one counter where not."""
    taken: dict[int, list[int | None]] = {}
    counter = 0
    shard_of = budget.shard_of if budget.shards is not None else None
    claims = {learner: ClaimQueue(left, groups, learner, shard_of) for group in groups for learner in group}
    active = list(groups)
    while active:
        for group in list(active):
            first = claims[group[0]]
            base = first.next_base() if not first.counted else counter
            counter += len(group) if first.counted else 0
            made = [claims[learner].take(base) for learner in group]
            if made[0] is None:
                assert all(claim is None for claim in made)
                active.remove(group)
                continue
            assert len({claim.position for claim in made if claim}) == 1
            for learner, claim in zip(group, made, strict=True):
                assert claim is not None
                taken.setdefault(learner, []).append(claim.number)
    return taken


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_ten_minibatches_on_four_learners(groups: list[list[int]], shards: int | None) -> None:
    budget = Budget(10, 30, shards=shards)
    for epoch in range(3):
        taken = everyone_takes(range(10 * epoch, 10 * epoch + 10), groups, budget)
        numbers = Counter(n for mine in taken.values() for n in mine if n is not None)
        assert numbers == Counter(range(10 * epoch, 10 * epoch + 10))
        for group in groups:  # those that step together take the same number of steps
            assert len({len(taken.get(learner, [])) for learner in group}) == 1


def test_private_shards_are_kept_from_epoch_to_epoch() -> None:
    budget = Budget(10, 20, shards=4)
    first = everyone_takes(range(10), [[0, 1, 2, 3]], budget)
    second = everyone_takes(range(10, 20), [[0, 1, 2, 3]], budget)
    for learner in range(4):
        assert [n % 10 for n in first[learner] if n is not None] == [n % 10 for n in second[learner] if n is not None]
    assert [len([n for n in mine if n is not None]) for mine in first.values()] == [3, 3, 2, 2]


def test_a_lost_learners_shard_is_taken_by_the_others() -> None:
    budget = Budget(10, 20, shards=4)
    taken = everyone_takes(range(10), [[0, 1, 2]], budget)
    assert Counter(n for mine in taken.values() for n in mine if n is not None) == Counter(range(10))


def test_the_run_is_cut_at_epochs_evaluations_and_the_warm_up() -> None:
    stretches = Budget(minibatches_per_epoch=10, total=25, evaluate_every=4, warmup=6).intervals()
    assert [(s.begin, s.end) for s in stretches] == [
        (0, 4),
        (4, 6),
        (6, 8),
        (8, 10),
        (10, 12),
        (12, 16),
        (16, 20),
        (20, 24),
        (24, 25),
    ]
    assert [s.warmup for s in stretches] == [True, True] + [False] * 7
    assert [s.end for s in stretches if s.evaluate] == [4, 8, 12, 16, 20, 24, 25]


def test_left_over() -> None:
    assert untrained([(3, 9)], [[3, 5], [8], [12]]) == [(4, 5), (6, 8)]
    assert untrained([(4, 5), (6, 8)], [[6], [3]]) == [(4, 5), (7, 8)]
    assert untrained([(0, 10**9)], []) == [(0, 10**9)]
    assert untrained([], [[1]]) == []


@pytest.mark.parametrize("settings", [{"total": 0}, {"minibatches_per_epoch": 0}, {"evaluate_every": 0}])
def test_empty_budgets_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="must be at least 1, not 0"):
        Budget(**{"minibatches_per_epoch": 1, "total": 1} | settings)


def make(intervals: Sequence[SyncInterval], strategy: Strategy | None = None) -> Agenda:
    """Return the agenda of a learner that is alone."""
    member = Member(Learner(nn.Linear(2, 1)), strategy or Synchronous(), LocalRuntime())
    agenda = Agenda(member, intervals)
    plan: dict[str, Any] = {}
    member.enter(run_blocking(member.runtime.rendezvous(member.learner, {}, lambda *_: plan)))
    member.start_strategy(warmup=False)
    return agenda


def ends(agenda: Agenda) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in agenda.intervals]


def claimed(agenda: Agenda) -> Iterator[int | None]:
    while (claim := run_blocking(agenda.claim())) is not None:
        yield claim.number


@pytest.mark.parametrize("strategy", [Synchronous(), ADPSGD()])
def test_all_of_an_interval_is_claimed_once(strategy: Strategy) -> None:
    agenda = make(Budget(10, 25).intervals(), strategy)
    for begin, end in ends(agenda):
        agenda.start_interval()
        agenda.hand_out_interval()
        assert list(claimed(agenda)) == list(range(begin, end))
        agenda.advance()
    assert agenda.done
    assert agenda.current.end == 25  # the last one
    agenda.start_interval()
    assert agenda.remaining == []


def test_a_sync_point_divides_one_interval() -> None:
    agenda = make([SyncInterval(0, 10, evaluate=True, checkpoint=True), SyncInterval(10, 20)])
    for position in (4, 10, 30):
        agenda.add_sync_point(position)
    assert ends(agenda) == [(0, 4), (4, 10), (10, 20)]
    assert [(each.evaluate, each.checkpoint) for each in agenda.intervals] == [
        (False, False),
        (True, True),
        (False, False),
    ]


def test_a_run_stops_behind_its_last_interval() -> None:
    agenda = make(Budget(10, 30).intervals())
    agenda.advance(stop=True)
    assert agenda.done
    saved = RankState(10)
    agenda.capture(saved)
    assert saved.state == {"done": True, "pace": [0.0, 0.0]}


def test_what_remains_after_a_loss_is_handed_out() -> None:
    agenda = make(Budget(10, 30).intervals())
    agenda.continue_at(1, [(12, 13), (17, 20)])
    agenda.hand_out_remaining()
    assert list(claimed(agenda)) == [12, 17, 18, 19]
    others = [SyncInterval(0, 10), SyncInterval(10, 15), SyncInterval(15, 30)]
    agenda.continue_at(2, [(15, 30)], others)
    assert agenda.current == others[2]


def test_unsafe_minibatches_are_listed_but_not_handed_out() -> None:
    agenda = make(Budget(10, 30).intervals())
    agenda.advance()
    agenda.start_interval([3, 7])
    agenda.hand_out_interval()
    assert agenda.remaining == [(3, 4), (7, 8), (10, 20)]
    assert list(claimed(agenda)) == list(range(10, 20))


@pytest.mark.parametrize(("position", "done", "index", "begin"), [(10, False, 1, 10), (14, False, 2, 14)])
def test_a_checkpoint_continues_at_its_position(position: int, done: bool, index: int, begin: int) -> None:
    agenda = make(Budget(10, 30).intervals())
    agenda.restore_position(position, done=done)
    assert agenda.interval_index == index
    assert agenda.current.begin == begin


@pytest.mark.parametrize(("position", "done"), [(30, False), (10, True)])
def test_a_checkpoint_of_a_finished_run_leaves_nothing(position: int, done: bool) -> None:
    agenda = make(Budget(10, 30).intervals())
    agenda.restore_position(position, done=done)
    assert agenda.done


def test_a_user_loop_appends_intervals() -> None:
    agenda = make([SyncInterval(0, 0)])
    agenda.restart(12)
    assert agenda.append(3) == 12
    assert list(claimed(agenda)) == [12, 13, 14]
    agenda.extend_last(20)
    agenda.extend_last(16)
    assert agenda.append(0) == 20
    assert list(claimed(agenda)) == []

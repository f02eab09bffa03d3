"""Intervals are divided, passed and handed out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import nn

from roundelay.learner import Learner
from roundelay.runtimes.blocking import run_blocking
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies import ADPSGD, Synchronous
from roundelay.strategy import Strategy
from roundelay.training.budget import Agenda, Budget, SyncInterval
from roundelay.training.member import Member
from roundelay.training.rank_state import RankState


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
    assert saved.state == {"done": True}


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

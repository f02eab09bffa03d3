"""A rank in its membership: its name, its strategy in turn, its schedule, and what a checkpoint has of it."""

from __future__ import annotations

import pytest
import torch

from lone_member import LoneMember
from roundelay.errors import SettingsError
from roundelay.optim.schedules import ExponentialDecay, Newbob
from roundelay.runtime import Membership
from roundelay.strategies import ADPSGD, ASGD, Averaging, Synchronous
from roundelay.strategy import Asynchronous
from roundelay.training.rank_state import RankState
from small_strategies import Server


def test_a_member_has_a_strategy_of_its_own() -> None:
    given = Averaging(period=3)
    one, other = LoneMember(given), LoneMember(given)
    one.start_strategy(warmup=False)
    assert one.active_strategy is one.strategy
    assert one.strategy is not given
    assert one.strategy is not other.strategy
    assert isinstance(one.strategy, Averaging)
    assert one.strategy.period == 3


def test_warm_up_is_synchronous_and_each_start_is_counted() -> None:
    member = LoneMember(ADPSGD())
    member.start_strategy(warmup=True)
    assert isinstance(member.active_strategy, Synchronous)
    states = [member.in_warmup]
    member.start_strategy(warmup=False)
    states.append(member.in_warmup)
    assert states == [True, False]
    assert member.strategy_starts == 2


def test_servers_come_before_learners() -> None:
    with pytest.raises(SettingsError, match="1 ranks cannot train by ASGD, which takes 2 for serving"):
        LoneMember(ASGD(servers=2))
    member = LoneMember(Synchronous())
    member.strategy = Server(servers=1)
    member.enter(Membership(1, 0, 3, {}))
    assert (member.name, member.learner.is_server, member.num_learners) == ("server 0", True, 2)
    member.enter(Membership(1, 2, 3, {}))
    assert (member.name, member.learner.is_server, member.learner.index) == ("learner 1", False, 1)
    member.active_strategy = member.strategy
    assert member.lockstep_ranks() == [[0], [1], [2]]


def test_settings_that_do_not_fit_are_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="period must be at least 1"):
        LoneMember(Averaging(period=0))


def test_events_bear_its_name() -> None:
    member = LoneMember(Synchronous())
    member.write("something", number=3)
    (event,) = member.events
    assert (event["event"], event["member"], event["number"]) == ("something", "learner 0", 3)


def test_requests_are_served_by_whoever_serves() -> None:
    class Echo(Asynchronous):
        def serve(self, learner: object, theirs: torch.Tensor, source: int) -> torch.Tensor:
            return theirs * 2

    member = LoneMember(Echo())
    member.start_strategy(warmup=False)

    async def ask() -> torch.Tensor:
        return await member.world.request(torch.ones(2), to=0)

    assert member.alone.run(ask()).tolist() == [2.0, 2.0]


def test_a_schedule_that_decides_is_saved_and_restored() -> None:
    member, other = LoneMember(Synchronous(), schedule=Newbob()), LoneMember(Synchronous(), schedule=Newbob())
    for loss in (2.0, 1.9999, 1.9998):
        assert member.schedule is not None
        member.schedule.on_evaluation({"loss": loss})
    assert member.schedule_state != other.schedule_state
    other.restore_schedule(member.schedule_state)
    assert member.schedule_state == other.schedule_state
    plain = LoneMember(Synchronous(), schedule=ExponentialDecay(100.0))
    assert plain.schedule_state == {}
    plain.restore_schedule({})


def test_a_checkpoint_names_the_strategy_and_has_the_weights() -> None:
    member = LoneMember(Averaging(period=3))
    member.start_strategy(warmup=False)
    state = RankState(10, 0, 1)
    member.capture(state)
    assert (state.state["strategy_name"], state.state["warmup"]) == ("Averaging", False)
    assert torch.equal(state.tensors["weights"], member.learner.weights)
    member.restore(state)

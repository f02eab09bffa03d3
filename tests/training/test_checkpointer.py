"""When a checkpoint is due, where learners synchronize for it, and what is saved."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lone_member import LoneMember
from roundelay.errors import NumericalError
from roundelay.strategies import Synchronous
from roundelay.training.budget import Agenda, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.rank_state import RankState
from roundelay.training.training_settings import CheckpointSettings


@pytest.fixture
def member() -> LoneMember:
    return LoneMember(Synchronous())


def agenda_of(member: LoneMember) -> Agenda:
    agenda = Agenda(member, [SyncInterval(0, 10, checkpoint=True), SyncInterval(10, 100)])
    agenda.start_interval()
    return agenda


def decide(checkpointer: Checkpointer, member: LoneMember, agenda: Agenda) -> bool:
    return member.alone.run(checkpointer.decide(member, agenda, agenda.current))


def test_without_settings_nothing_is_due(member: LoneMember) -> None:
    assert not decide(Checkpointer(), member, agenda_of(member))


def test_by_frames_the_interval_says_so(member: LoneMember) -> None:
    checkpointer, agenda = Checkpointer(CheckpointSettings(every_frames=100)), agenda_of(member)
    assert decide(checkpointer, member, agenda)
    agenda.advance()
    assert not decide(checkpointer, member, agenda)


def test_by_minutes_it_is_due_after_so_many_and_the_next_place_is_foreseen(member: LoneMember) -> None:
    checkpointer, agenda = Checkpointer(CheckpointSettings(every_minutes=1.0)), agenda_of(member)
    member.alone.restore({"now": 30.0})
    assert not decide(checkpointer, member, agenda)
    agenda.advance()
    member.alone.restore({"now": 70.0})
    checkpointer.start_interval(60.0)  # 90 minibatches in 10 s: soon the end
    assert decide(checkpointer, member, agenda)
    assert checkpointer.last_saved == pytest.approx(70.0, abs=1.0)


def test_by_minutes_learners_synchronize_early_to_measure_their_speed(member: LoneMember) -> None:
    agenda = agenda_of(member)
    Checkpointer(CheckpointSettings(every_minutes=1.0)).add_first_sync_point(member, agenda, 0)
    assert (agenda.current.begin, agenda.current.end) == (0, 8)
    other = agenda_of(member)
    Checkpointer(CheckpointSettings(every_frames=100)).add_first_sync_point(member, other, 0)
    assert other.current.end == 10


def test_a_checkpoint_is_recorded_and_written(member: LoneMember, tmp_path: Path) -> None:
    saver = Saver(tmp_path, CheckpointSettings(every_frames=100))
    checkpointer = Checkpointer(CheckpointSettings(every_frames=100), saver)
    checkpointer.adopt(2)

    def capture(position: int) -> RankState:
        state = RankState(position, 0, 1)
        member.capture(state)
        return state.freeze()

    checkpointer.save(member, 10, capture)
    checkpointer.wait()
    saver.close()
    assert [(event["event"], event["minibatch"]) for event in member.events] == [("checkpoint", 10)]
    assert checkpointer.checkpoints.positions() == [10]
    assert checkpointer.checkpoints.read(10, 0).attempt == 2
    assert checkpointer.readable_parts(member) is not None


def test_weights_that_are_not_finite_are_not_saved(member: LoneMember) -> None:
    member.learner.weights.fill_(math.nan)
    with pytest.raises(NumericalError, match="learner 0: after minibatch 10 it has non-finite weights"):
        Checkpointer().save(member, 10, lambda position: RankState(position, 0, 1))


def test_a_fresh_start_forgets_the_record(member: LoneMember, tmp_path: Path) -> None:
    saver = Saver(tmp_path, CheckpointSettings())
    restarted = []
    member.alone.record.restart = lambda: restarted.append(True)  # type: ignore[method-assign]
    Checkpointer(CheckpointSettings()).start_fresh(member, agenda_of(member))
    assert restarted == [], "without files there is nothing to begin again"
    Checkpointer(CheckpointSettings(), saver).start_fresh(member, agenda_of(member))
    assert restarted == [True]
    saver.close()

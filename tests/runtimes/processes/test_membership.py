"""Learners are killed, stopped and let in again: the others go on, and no minibatch is left out."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fault_runs
import process_jobs
from fault_runs import Fault
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.membership import (
    Heartbeat,
    MembershipProtocol,
    announce_end,
    current_id,
    latest_members,
    report_death,
)
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, start_store

MINIBATCHES = 320  # at least 0.64 s: every kill comes before the end
STALL_SECONDS = 15.0  # no hang; a busy machine or name server may cost seconds; the figures are printed


def settings(strategy: str) -> dict[str, Any]:
    return {"strategy": strategy, "minibatches": MINIBATCHES, "task": {"pause_seconds": 0.008}}


def report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def check(outcome: fault_runs.Outcome, lost: set[int]) -> None:
    """See that the survivors have finished together and nothing is missing."""
    assert [k for k, result in enumerate(outcome.results) if result is None] == sorted(lost)
    assert len({result["digest"] for result in outcome.results if result is not None}) == 1
    assert set(outcome.trained) == set(range(MINIBATCHES)), "no minibatch missing"
    assert max(outcome.trained.values()) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["gloo", "shared"])
@pytest.mark.parametrize("strategy", sorted(process_jobs.STRATEGIES))
def test_a_killed_learner(strategy: str, transport: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    fault = Fault(draw.randrange(4), draw.uniform(0.0, 0.5))
    options = Options(transport=transport)  # type: ignore[arg-type]  # one of its literals
    outcome = fault_runs.run(settings(strategy), size=4, folder=tmp_path, faults=[fault], options=options)
    report(f"seed {seed}: {strategy} over {transport}, stall {1000 * outcome.stall(fault):.0f} ms")
    check(outcome, {fault.learner})
    assert outcome.stall(fault) < STALL_SECONDS
    lost = [event for event in outcome.events if event["event"] == "lost"]
    assert {event["member"] for event in lost} <= {"learner 0", "learner 1", "learner 2", "learner 3", "server 0"}
    first = min(time for steps in outcome.steps.values() for time, _ in steps)
    assert lost or fault.at < first, "only before the first step can a loss go unnoticed"
    assert all(event["reason"] for event in lost)  # in which words depends on the moment


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["synchronous", "gossip"])
def test_a_second_kill_inside_the_regroup(strategy: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    after = draw.uniform(0.1, 0.4)
    both = [Fault(1, after), Fault(2, after + draw.uniform(0.0, 0.06))]
    outcome = fault_runs.run(settings(strategy), size=4, folder=tmp_path, faults=both, options=Options())
    report(f"seed {seed}: {strategy}, stall {1000 * outcome.stall(both[0]):.0f} ms")
    assert [k for k, result in enumerate(outcome.results) if result is None] == [1, 2]
    assert set(outcome.trained) == set(range(MINIBATCHES))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["gloo", "shared"])
def test_a_stopped_learner_is_left_behind(transport: str, tmp_path: Path) -> None:
    fault = Fault(1, 0.2, (signal.SIGSTOP, signal.SIGCONT), pause_seconds=3.0)
    options = Options(transport=transport, heartbeat_timeout=1.0)  # type: ignore[arg-type]  # one of its literals
    outcome = fault_runs.run(settings("gossip"), size=3, folder=tmp_path, faults=[fault], options=options)
    report(f"stall {1000 * outcome.stall(fault):.0f} ms at a patience of 1 s")
    # It woke, and asked to join: it was let in, or told that the others had finished.
    check(outcome, {1} if not outcome.joined else set())
    assert outcome.stall(fault) < 1.0 + STALL_SECONDS
    assert any("silent for 1 s" in event["reason"] for event in outcome.events if event["event"] == "lost")


@pytest.mark.slow
def test_a_learner_that_never_wakes_is_ended(tmp_path: Path) -> None:
    fault = Fault(0, 0.2, (signal.SIGSTOP,))
    outcome = fault_runs.run(
        settings("averaging"), size=3, folder=tmp_path, faults=[fault], options=Options(heartbeat_timeout=1.0)
    )
    check(outcome, {0})


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["gloo", "shared"])
def test_a_stopped_learner_is_let_in_again(transport: str, tmp_path: Path) -> None:
    options = Options(transport=transport, heartbeat_timeout=1.0)  # type: ignore[arg-type]  # one of its literals
    told = {"stopped": 1, "folder": str(tmp_path)}
    results = launcher.run(process_jobs.entry("come_back"), told, size=3, options=options)
    assert [result["rank"] for result in results] == [0, 2, 1], "newcomers come last"
    assert {result["size"] for result in results} == {3}
    assert {result["mean"] for result in results} == {1.0}
    expected = [[False, [0]], [False, [2]], [True, [1]]]  # the plan must not count what a newcomer has
    assert [result["members"] for result in results] == [expected] * 3


# -- the protocol alone --------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> KeyValueStore:
    return start_store("127.0.0.1")[0]


def test_the_first_reason_counts(store: KeyValueStore) -> None:
    announce_end(store, 3, [0, 1], "first")
    announce_end(store, 3, [0, 1], "second")
    assert store.get("end/3") == "first"
    assert store.has("wake/3/0")
    assert store.has("wake/3/1")


def test_an_obituary_ends_the_newest_epoch_only(store: KeyValueStore) -> None:
    store.set("members/0", {"members": [0, 1, 2]})
    store.set("members/1", {"members": [0, 2]})
    assert latest_members(store) == (1, [0, 2])
    report_death(store, 1, "gone long ago")
    assert not store.has("end/1")
    store.set("id/2", 5)
    assert current_id(store, 2) == 5
    report_death(store, 0, "gone now")
    assert store.get("end/1") == "gone now"
    assert not store.has("end/0")


def test_alone_one_agrees_with_oneself(store: KeyValueStore) -> None:
    store.add("ids", 2)
    store.set("dead/1", "never came")
    membership = MembershipProtocol(store, 0, 2, heartbeat_timeout=5.0)
    other = store.clone()
    other.append("safe/1", "4 ")
    other.append("safe/1", "7 ")
    seen: list[Any] = []

    def resolve(reports: Any, safe: Any) -> dict[str, Any]:
        seen.append((list(reports), list(safe)))
        return {"plan": 1}

    agreement = membership.agree({"has_model": False}, resolve, {"card": 0})
    assert (agreement.generation, agreement.members, agreement.plan) == (0, [0], {"plan": 1})
    assert agreement.endpoints == [{"card": 0}]
    assert seen == [([{"has_model": False}], [4, 7])]
    assert not membership.has_newcomers()
    assert not membership.has_newcomers("round 10")
    store.append("newcomers", '{"id": 2, "report": {}}\n')
    assert membership.has_newcomers()
    assert not membership.has_newcomers("round 10"), "what was settled stays so, for who comes late"
    assert membership.has_newcomers("round 20")
    over: list[str] = []
    membership.watch(over.append)
    announce_end(other, 0, [0], "because")
    deadline = time.monotonic() + 5
    while not over and time.monotonic() < deadline:
        time.sleep(0.01)
    membership.stop()
    assert over == ["because"]


@pytest.mark.timeout(20)
def test_a_learner_that_is_lost_before_its_first_heartbeat_is_missed(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add("ids", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Heartbeat, "start", lambda self: None)
        MembershipProtocol(store, 1, 2, heartbeat_timeout=0.2)
    membership = MembershipProtocol(store, 0, 2, heartbeat_timeout=0.2)
    agreement = membership.agree({}, lambda reports, safe: {}, {})
    membership.stop()
    assert agreement.members == [0]

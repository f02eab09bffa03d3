"""Killed learners are started again and join the others; stopped ones come back when they wake; on real processes.

`make faults` kills each strategy's learners at thirty moments; here each is disturbed once, at a printed moment.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fault_runs
import fault_schedules
import process_jobs
from fault_runs import Fault
from roundelay.cli.train import command
from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.fault_plan import FaultPlan, parse
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.options import Options
from roundelay.strategies import STRATEGIES

STALL_SECONDS = 15.0  # no hang; a busy machine or name server may cost seconds; `make faults` measures


def settings(strategy: str, minibatches: int) -> dict[str, Any]:
    given = fault_schedules.SETTINGS.get(strategy, {})
    rate = 0.0125 if strategy == "asgd-updates" else 0.05  # its server adds up what all learners' optimizers do
    task = {"pause_seconds": 0.008, "rate": rate, "momentum": 0.5}
    return {"strategy": strategy, "with": given, "minibatches": minibatches, "task": task}


def draw() -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    sys.stderr.write(f"seed {seed}\n")
    return random.Random(seed)


def check(outcome: fault_runs.Outcome, minibatches: int) -> None:
    finished = [result for result in outcome.results if result is not None]
    assert len({result["digest"] for result in finished}) == 1
    assert set(outcome.trained) == set(range(minibatches)), "no minibatch missing"
    assert max(outcome.trained.values()) <= 2
    assert finished[0]["loss"] < 0.6, "it is 0.7 at first, and about 0.4 undisturbed"
    assert not fault_runs.learners_left()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_killed_learner_joins_again(strategy: str, tmp_path: Path) -> None:
    rng = draw()
    fault = Fault(rng.randrange(4), rng.uniform(0.0, 0.3))
    outcome = fault_runs.run(
        settings(strategy, 320), size=4, folder=tmp_path, faults=[fault], options=Options(), restarts=1
    )
    check(outcome, 320)
    joined = min((event["time"] for event in outcome.joined), default=None)
    assert outcome.stall(fault, until=joined) < STALL_SECONDS
    # Where the others had finished before it could come, it just ended.
    assert [result is not None for result in outcome.results].count(True) >= (4 if joined is not None else 3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["asgd", "easgd", "hierarchical"])
def test_a_server_a_centre_and_a_nodes_leader_are_replaced(strategy: str, tmp_path: Path) -> None:
    fault = Fault(0, draw().uniform(0.1, 0.3))
    outcome = fault_runs.run(settings(strategy, 160), size=4, folder=tmp_path, faults=[fault], options=Options())
    check(outcome, 160)
    assert [result is None for result in outcome.results] == [True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["synchronous", "adpsgd"])
def test_a_stopped_learner_comes_back_and_trains(strategy: str, tmp_path: Path) -> None:
    fault = Fault(1, 0.2, (signal.SIGSTOP, signal.SIGCONT), pause_seconds=None)
    options = Options(heartbeat_timeout=0.8)
    given = settings(strategy, 1600)
    outcome = fault_runs.run(given, size=4, folder=tmp_path, faults=[fault], options=options)
    check(outcome, 1600)
    assert all(outcome.results)
    joined = [event["time"] for event in outcome.joined if event["time"] > fault.over]  # others may be slow, too
    assert joined
    assert any(moment > joined[0] for moment, _ in outcome.steps[1])
    others = [moment for rank in (0, 2, 3) for moment, _ in outcome.steps[rank]]
    assert any(fault.at + 0.8 < moment < joined[0] for moment in others), "the others trained on"


@pytest.mark.slow
def test_one_that_keeps_dying_is_given_up() -> None:
    with pytest.raises(CommunicationError, match="no learner is left"):
        launcher.run(process_jobs.entry("fail"), {"learner": 0, "how": "kill"}, size=1, faults=FaultPlan(rejoins=3))
    results = launcher.run(process_jobs.entry("die_or_train"), {"learner": 1}, size=3, faults=FaultPlan(rejoins=1))
    assert [result is None for result in results] == [False, True, False]


@pytest.mark.slow
def test_faults_happens_and_is_written_down(tmp_path: Path) -> None:
    events = parse("kill 1 at 300ms; stop 0 for 100ms at 400ms; slow 2 x3 at 200ms", 3)
    given = {**settings("gossip", 300), "folder": str(tmp_path)}
    launcher.run(
        process_jobs.entry("train_traced"), given, size=3, folder=tmp_path, faults=FaultPlan(events, rejoins=1)
    )
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    told = [(line["member"], line["kind"]) for line in lines if line["event"] == "fault"]
    assert told == [("learner 2", "slow"), ("learner 1", "kill"), ("learner 0", "stop"), ("learner 0", "continue")]
    assert {line["clock"] for line in lines} == {"wall"}


@pytest.mark.slow
def test_faults_that_never_happens_is_an_error(tmp_path: Path) -> None:
    events = parse("kill 1 at 1h", 2)
    with pytest.raises(SettingsError, match="kill 1 at 3600s never happened"):
        launcher.run(
            process_jobs.entry("train"), settings("gossip", 20), size=2, folder=tmp_path, faults=FaultPlan(events)
        )
    with pytest.raises(SettingsError, match="in the simulator only"):
        launcher.run(
            process_jobs.entry("train"), settings("gossip", 20), size=2, faults=FaultPlan(parse("isolate 1 for 2s", 2))
        )


@pytest.mark.slow
def test_faults_by_the_command_line(tmp_path: Path, root: Path) -> None:
    tiny = str(root / "experiments" / "tiny.toml")
    arguments = [tiny, "--on", "simulator", "--learners", "4", "--set", "budget.epochs=1", "--heartbeat-timeout", "0.3"]
    faults = "kill 1 at 0.5s; stop 2 for 500ms at 1s; slow 0 x3; isolate 2,3 for 500ms at 2s"
    out = tmp_path / "run"
    done = CliRunner().invoke(command, [*arguments, "--out", str(out), "--faults", faults], catch_exceptions=False)
    assert done.exit_code == 0
    lines = [json.loads(line) for line in (out / "record.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines if line["event"] == "fault"]
    assert set(kinds) == {"kill", "restart", "stop", "continue", "slow", "isolate"}
    assert sum(line["event"] == "joined" for line in lines) == 4
    with pytest.raises(SettingsError, match="kill 1 at 50s never happened"):
        CliRunner().invoke(
            command, [*arguments, "--out", str(tmp_path / "b"), "--faults", "kill 1 at 50s"], catch_exceptions=False
        )

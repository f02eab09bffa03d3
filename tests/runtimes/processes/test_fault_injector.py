"""Planned faults reach the processes that a launcher has started, each once and at its time."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.fault_plan import parse
from roundelay.runtimes.processes.fault_injector import FaultInjector
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore


class Began:
    """A store that knows when the run began: so many seconds ago, or not yet."""

    def __init__(self, ago: float | None) -> None:
        self.ago = ago

    def get(self, key: str) -> float | None:
        assert key == "began"
        return time.time() - self.ago if self.ago is not None else None


def inject(injector: FaultInjector, ago: float | None, alive: dict[int, int]) -> tuple[list[tuple[int, int]], float]:
    """Inject what is due; return the signals by process, and how long to wait."""
    sent: list[tuple[int, int]] = []
    wait = injector.inject_due(cast("KeyValueStore", Began(ago)), alive, lambda pid, number: sent.append((pid, number)))
    return sent, wait


def test_nothing_is_sent_before_the_run_has_begun(tmp_path: Path) -> None:
    injector = FaultInjector(parse("kill 0", 2), 0, [0, 1], None)
    sent, wait = inject(injector, None, {0: 100, 1: 101})
    assert sent == []
    assert wait < 1
    assert inject(injector, 0.5, {0: 100, 1: 101})[0] == [(100, signal.SIGKILL)]


def test_a_learner_that_is_stopped_continues() -> None:
    injector = FaultInjector(parse("stop 1 for 10s at 5s", 2), 0, [0, 1], None)
    alive = {0: 100, 1: 101}
    sent, wait = inject(injector, 2.0, alive)
    assert sent == []
    assert wait == pytest.approx(3.0, abs=0.5)
    injector._began = time.time() - 6.0
    assert inject(injector, 6.0, alive)[0] == [(101, signal.SIGSTOP)]
    injector._began = time.time() - 16.0
    sent, wait = inject(injector, 16.0, alive)
    assert (sent, wait) == ([(101, signal.SIGCONT)], math.inf)
    injector.check()


def test_a_learner_that_is_being_restarted_gets_its_fault_when_it_is_there() -> None:
    injector = FaultInjector(parse("kill 1 at 1s", 2), 0, [0, 1], None)
    assert inject(injector, 2.0, {0: 100})[0] == []
    assert inject(injector, 2.0, {0: 100, 1: 205})[0] == [(205, signal.SIGKILL)]


def test_servers_come_first_and_others_launchers_processes_are_theirs() -> None:
    events = parse("kill 1 at 0s; kill server 0 at 0s", 2, 1)
    injector = FaultInjector(events, 1, [0, 1], None)  # learner 1 is rank 2, of another host
    assert inject(injector, 1.0, {0: 100, 1: 101})[0] == [(100, signal.SIGKILL)]
    injector.check()


def test_slowness_is_for_the_process_itself() -> None:
    injector = FaultInjector(parse("slow 0 x5 at 2s for 3s; slow 1 x2", 2), 0, [0, 1], None)
    assert injector.slowed(0) == [(2.0, 5.0, 5.0)]
    assert injector.slowed(1) == [(0.0, 1e18, 2.0)]


def test_faults_are_recorded_by_name(tmp_path: Path) -> None:
    injector = FaultInjector(parse("kill 0", 1, 1), 1, [0, 1], tmp_path)
    inject(injector, 1.0, {0: 100, 1: 101})
    injector.close()
    injector.close()
    lines: list[dict[str, Any]] = [json.loads(x) for x in (tmp_path / "record-faults.jsonl").read_text().splitlines()]
    assert [(line["event"], line["member"], line["kind"]) for line in lines] == [("fault", "learner 0", "kill")]


def test_a_fault_that_never_came_and_one_for_the_simulator_are_refused() -> None:
    late = FaultInjector(parse("kill 0 at 1h", 1), 0, [0], None)
    inject(late, 1.0, {0: 100})
    with pytest.raises(SettingsError, match="kill 0"):
        late.check()
    with pytest.raises(SettingsError, match="learners are isolated in the simulator only"):
        FaultInjector(parse("isolate 1 for 2s", 2), 0, [0, 1], None)

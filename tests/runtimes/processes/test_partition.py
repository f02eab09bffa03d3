"""Two hosts whose cable is pulled and plugged in again: those cut off are left out, and come back."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fault_runs import await_true, lines_of, went_on
from host_launchers import outcome, start, two_namespaces

LEARNERS = {f"learner {number}" for number in range(4)}


def set_cable(namespace: str, state: str) -> None:
    """Pull the cable, or plug it in."""
    links = subprocess.run(["ip", "-n", namespace, "-br", "link"], check=True, capture_output=True, text=True).stdout
    cable = next(line.split("@")[0] for line in links.splitlines() if line.startswith("rdl"))
    subprocess.run(["ip", "-n", namespace, "link", "set", cable, state], check=True)


@pytest.mark.slow
def test_a_host_that_comes_back(tmp_path: Path) -> None:
    minibatches = 1500
    task = {"pause_seconds": 0.02, "rate": 0.02, "momentum": 0.5}
    settings = {"strategy": "gossip", "minibatches": minibatches, "task": task, "folder": str(tmp_path)}
    with two_namespaces() as ((one, address), (two, _)):
        hosts = {"rendezvous": f"{address}:29512", "count": 2, "silence_seconds": 60.0}
        what = {
            "entry": "train_traced", "settings": settings, "size": 4, "hosts": hosts,
            "folder": str(tmp_path), "options": {"heartbeat_timeout": 1.0},
        }  # fmt: skip
        first, second = start(what, "ip", "netns", "exec", one), start(what, "ip", "netns", "exec", two)
        await_true(lambda: {line["member"] for line in lines_of(tmp_path) if line["event"] == "step"} == LEARNERS)
        before = max(line["time"] for line in lines_of(tmp_path))
        set_cable(two, "down")
        await_true(lambda: went_on(tmp_path, before))
        set_cable(two, "up")
        results, others = outcome(first), outcome(second)
    assert isinstance(results, list), results
    assert isinstance(others, list), others
    lines = lines_of(tmp_path)
    counts = Counter(line["minibatch"] for line in lines if line["event"] == "step")
    assert set(counts) == set(range(minibatches)), "no minibatch missing"
    assert max(counts.values()) <= 2
    lost = [line["reason"] for line in lines if line["event"] == "lost"]
    assert lost, "the others did not wait for the cable"
    assert sum(line["event"] == "joined" for line in lines) == 2, lost
    assert [result is not None for result in results] == [True] * 4
    assert len({result["digest"] for result in results}) == 1

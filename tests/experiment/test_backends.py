"""What backends make of an experiment and of options, as far as it needs no other process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundelay.errors import SettingsError
from roundelay.experiment.backends import RunOptions, Simulator
from roundelay.experiment.run_observer import RunObserver
from roundelay.experiment.settings import Experiment
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.fault_plan import FaultPlan, parse

TABLE: dict[str, Any] = {
    "task": {"name": "tiny", "frames_per_epoch": 320, "hidden": [8]}, "batch": {"size": 16}, "learners": 2,
    "budget": {"minibatches": 20}, "strategy": {"name": "averaging"},
}  # fmt: skip


def simulator(options: RunOptions | None = None, out: Path | None = None, **changes: Any) -> Simulator:
    return Simulator(Experiment.of(TABLE | changes), out, options or RunOptions(), RunObserver())


def test_the_simulator_has_a_cluster_and_starts_nothing_again() -> None:
    made = simulator(RunOptions(restarts=3))
    assert made.experiment.cluster == Cluster()
    assert made.restarts == 0
    assert simulator(cluster={"nodes": 2}).experiment.cluster == Cluster(nodes=2)


def test_what_comes_before_the_learners_is_called_once() -> None:
    calls: list[bool] = []
    simulator().prepare(lambda: calls.append(True))
    assert calls == [True]


def test_a_simulated_run_gives_scores_and_leaves_its_model(tmp_path: Path) -> None:
    made = simulator(out=tmp_path)
    result = made.launch(made.experiment.job(), 1.0, None)
    assert result["scores"]["loss"] > 0
    assert result["clock"] == "virtual"
    assert {"record.jsonl", "model.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


def test_the_simulator_can_do_without_a_folder() -> None:
    made = simulator()
    assert made.launch(made.experiment.job(), 1.0, None)["seconds"] > 0


def test_faults_are_injected_and_those_that_never_came_are_named() -> None:
    plan = FaultPlan(parse("slow 0 x5", 2))
    slow, even = simulator(RunOptions(faults=plan)), simulator()
    seconds = [made.launch(made.experiment.job(), 1.0, None)["seconds"] for made in (slow, even)]
    assert seconds[0] > 2 * seconds[1]
    late = simulator(RunOptions(faults=FaultPlan(parse("kill 1 at 1h", 2))))
    with pytest.raises(SettingsError, match="kill 1"):
        late.launch(late.experiment.job(), 1.0, None)


def test_weights_of_this_process_come_before_those_of_the_folder() -> None:
    made = simulator()
    weights: dict[str, Any] = {}
    assert made.start_weights(weights) is weights
    assert made.start_weights(None) is None

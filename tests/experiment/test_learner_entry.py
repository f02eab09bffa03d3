"""What a process that trains does with the launcher's job; here the process is this one, and alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roundelay.experiment.learner_entry import ENTRY, LearnerJob, learn
from roundelay.experiment.settings import Experiment
from roundelay.runs.record import Record
from roundelay.runtimes.entry_point import find_entry
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.training.event_order import read_order

TABLE: dict[str, Any] = {
    "task": {"name": "tiny", "frames_per_epoch": 320, "hidden": [8]}, "batch": {"size": 16},
    "budget": {"minibatches": 20, "evaluate_every": 10},
}  # fmt: skip


def job(folder: Path, **changes: Any) -> LearnerJob:
    """Make a job as a launcher sends it."""
    sent: LearnerJob = {
        "experiment": Experiment.of(TABLE | changes).for_learners(), "folder": str(folder), "several_hosts": True,
        "lr_factor": 1.0, "stage": None,
    }  # fmt: skip
    received: LearnerJob = json.loads(json.dumps(sent))
    return received


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    record = Record(tmp_path / "record-0.jsonl", clock="wall")
    yield LocalRuntime(record)
    record.abandon()


def test_the_first_learner_leaves_the_model(runtime: LocalRuntime, tmp_path: Path) -> None:
    result = learn(runtime, job(tmp_path))
    assert result["clock"] == "wall"
    assert json.loads(json.dumps(result)) == result, "it goes through the launcher's store"
    about = json.loads((tmp_path / "model.json").read_text())
    assert (about["strategy"], about["scores"]) == ("Synchronous", result["scores"])
    assert (tmp_path / "model.safetensors").exists()


def test_the_order_is_written_down_if_asked(runtime: LocalRuntime, tmp_path: Path) -> None:
    learn(runtime, job(tmp_path, record={"order": True}))
    order = read_order(tmp_path / "order-0.txt")
    assert order.count("g") == 20


def test_a_lower_rate_is_applied(runtime: LocalRuntime, tmp_path: Path) -> None:
    lower = job(tmp_path / "lower")
    lower["lr_factor"] = 0.0
    (tmp_path / "lower").mkdir()
    learn(runtime, lower)
    first = Experiment.of(TABLE).make_task().make_module()
    saved = load_file(tmp_path / "lower" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in first.state_dict().items()), "no step was taken"


def test_the_entry_is_found_by_its_name() -> None:
    assert find_entry(ENTRY) is learn


def test_the_record_can_be_followed(runtime: LocalRuntime, tmp_path: Path) -> None:
    learn(runtime, job(tmp_path))
    lines = (tmp_path / "record-0.jsonl").read_text().splitlines()
    assert sum('"evaluate"' in line for line in lines) >= 2, "evaluations are flushed at once"

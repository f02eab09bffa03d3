"""Learners that would not train the same thing find out at the start, and say in what they differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from roundelay.errors import Mismatch
from roundelay.runtimes.processes import launcher
from roundelay.training.fingerprint import compare, fingerprint

SETTINGS: dict[str, Any] = {"learners": 2, "strategy": {"name": "bmuf", "block": 50}, "task": {"name": "tiny"}}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"learners": 3}, "rank 0 and rank 1 differ in learners: 2 and 3"),
        ({"strategy": {"name": "bmuf", "block": 40}}, "differ in strategy.block: 50 and 40"),
        ({"strategy": {"name": "bmuf"}}, "differ in strategy.block: 50 and nothing"),
        ({"debug": True}, "differ in debug: nothing and true"),
    ],
)
def test_the_differing_key_is_named(other: dict[str, Any], said: str) -> None:
    with pytest.raises(Mismatch, match=said):
        compare([fingerprint(SETTINGS), fingerprint(SETTINGS | other)], ["rank 0", "rank 1"])


def test_equal_is_equal() -> None:
    compare([fingerprint(SETTINGS)] * 3, ["rank 0", "rank 1", "rank 2"])


def test_versions_and_code_count() -> None:
    one = fingerprint(SETTINGS)
    for key in ("torch version", "roundelay version", "python version", "code"):
        with pytest.raises(Mismatch, match=f"differ in {key}"):
            compare([one, one | {key: "another"}], ["rank 0", "rank 1"])


def test_data_count_by_what_they_are_not_by_where(tmp_path: Path) -> None:
    prints = []
    for name, digest in (("one", "abc"), ("two", "abc"), ("three", "xyz")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prepared.json").write_text(json.dumps({"digest": digest}))
        prints.append(fingerprint(SETTINGS | {"task": {"name": "acoustic", "data": str(tmp_path / name)}}))
    compare(prints[:2], ["rank 0", "rank 1"])
    with pytest.raises(Mismatch, match="differ in data: abc and xyz"):
        compare([prints[0], prints[2]], ["rank 0", "rank 1"])
    gone = fingerprint(SETTINGS | {"task": {"name": "acoustic", "data": str(tmp_path / "none")}})
    with pytest.raises(Mismatch, match="differ in data: abc and no prepared data"):
        compare([prints[0], gone], ["rank 0", "rank 1"])


def train_differently(runtime: Any, settings: dict[str, Any]) -> None:
    """What the ranks of the test below run."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from roundelay.strategies import Synchronous
    from tiny_jobs import tiny_job

    job = tiny_job(Synchronous(), fingerprint=fingerprint(settings | {"clip": 1.0 + runtime.initial_rank}))
    runtime.run(job.training(runtime).run())


@pytest.mark.slow
def test_on_processes_the_run_ends_before_it_begins() -> None:
    with pytest.raises(Mismatch, match=r"differ in clip: 1.0 and 2.0"):
        launcher.run(f"{Path(__file__).resolve()}:train_differently", SETTINGS, size=2)

"""Whoever watches a run is told of steps and evaluations, wherever the learners are."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from roundelay.experiment.run_observer import Evaluated, ObservedRecord, RunObserver, follow


class Notes(RunObserver):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, float]] = []
        self.evaluations: list[Evaluated] = []
        self.told = threading.Event()

    def stepped(self, minibatch: int, frames: int, loss: float) -> None:
        self.steps.append((minibatch, frames, loss))
        self.told.set()

    def evaluated(self, evaluation: Evaluated) -> None:
        self.evaluations.append(evaluation)


def line(minibatch: int) -> str:
    step = {"event": "step", "member": "learner 0", "clock": "wall", "time": 1.0, "minibatch": minibatch}
    return json.dumps(step | {"frames": 8, "loss": 0.5}) + "\n"


def test_a_record_of_this_process_passes_on_what_is_written(tmp_path: Path) -> None:
    notes = Notes()
    record = ObservedRecord(tmp_path / "record.jsonl", notes, clock="virtual", spans=10)
    record.write("step", "learner 0", 1.0, minibatch=3, frames=8, loss=0.5)
    record.write("evaluate", "learner 0", 2.0, minibatch=4, epoch=0.5, error=0.25)
    record.span("evaluate", "learner 0", 1.0, 2.0)  # the time that it took is no evaluation
    record.close(2.0)
    assert notes.steps == [(3, 8, 0.5)]
    assert notes.evaluations == [Evaluated(4, 0.5, {"error": 0.25}, 2.0, "virtual")]
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 4


def test_what_other_processes_write_is_followed(tmp_path: Path) -> None:
    notes, path = Notes(), tmp_path / "record-0.jsonl"
    path.write_text(line(0))
    with follow(tmp_path, notes), path.open("a") as file:
        file.write(line(1) + line(2)[:10])
        file.flush()
        assert notes.told.wait(30)
        assert notes.steps == [(1, 8, 0.5)], "neither what was there before nor half a line"
        file.write(line(2)[10:])
    assert [number for number, _, _ in notes.steps] == [1, 2], "the rest is told at the end"


def test_the_rest_is_told_after_an_error_too(tmp_path: Path) -> None:
    notes = Notes()

    def fail() -> None:
        with follow(tmp_path, notes):
            (tmp_path / "record-1.jsonl").write_text(line(7) + "nonsense\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [number for number, _, _ in notes.steps] == [7]


def test_nobody_need_watch(tmp_path: Path) -> None:
    with follow(tmp_path, None):
        pass
    silent = RunObserver()
    silent.began(10)
    silent.ended()

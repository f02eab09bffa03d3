"""The record of a run: lines, spans and totals; a mark that one can return to; the parts of learners merged."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.errors import CheckpointError
from roundelay.runs.record import Record, merge_records


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_has_its_member_clock_and_time() -> None:
    text = io.StringIO()
    Record(text, clock="virtual").write("step", "learner 3", 1.5, minibatch=7)
    assert json.loads(text.getvalue()) == {
        "event": "step", "member": "learner 3", "clock": "virtual", "time": 1.5, "minibatch": 7,
    }  # fmt: skip


def test_spans_beyond_the_limit_count_in_the_totals_and_evaluations_are_always_written(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", clock="wall", spans=2)
    for k in range(4):
        record.span("compute", "learner 0", float(k), k + 0.5)
    record.span("evaluate", "learner 0", 4.0, 5.0)
    record.span("wait", "learner 0", 5.0, 5.0)  # no time at all
    record.add("learner 0", "bytes", 100)
    record.close(6.0)
    lines = lines_of(tmp_path / "record.jsonl")
    assert [line["event"] for line in lines] == ["compute", "compute", "evaluate", "totals"]
    assert {name: lines[-1][name] for name in ("compute", "evaluate", "bytes")} == {
        "compute": 2.0, "evaluate": 1.0, "bytes": 100,
    }  # fmt: skip
    assert "wait" not in lines[-1]


def test_what_comes_after_a_mark_is_forgotten(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", clock="wall")
    record.span("compute", "learner 0", 0.0, 1.0)
    mark = json.loads(json.dumps(record.mark()))  # as a checkpoint keeps it
    record.span("compute", "learner 0", 1.0, 4.0)
    record.rewind(mark)
    record.span("compute", "learner 0", 1.0, 2.0)
    record.close(2.0)
    lines = lines_of(tmp_path / "record.jsonl")
    assert [(line["event"], line.get("seconds")) for line in lines] == [
        ("compute", 1.0), ("compute", 1.0), ("totals", None),
    ]  # fmt: skip
    assert lines[-1]["compute"] == 2.0


def test_another_process_can_return_to_the_mark(tmp_path: Path) -> None:
    first = Record(tmp_path / "record.jsonl", clock="wall")
    first.write("step", "learner 0", 1.0)
    mark = first.mark()
    first.write("step", "learner 0", 2.0)
    first.abandon()
    second = Record(tmp_path / "record.jsonl", clock="wall")
    second.rewind(mark)
    second.write("step", "learner 0", 3.0)
    second.abandon()
    assert [line["time"] for line in lines_of(tmp_path / "record.jsonl")] == [1.0, 3.0]


def test_a_restarted_record_is_empty(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", clock="wall")
    record.span("compute", "learner 0", 0.0, 1.0)
    record.restart()
    record.close(1.0)
    assert (tmp_path / "record.jsonl").read_text() == ""


def test_an_ended_record_writes_no_more(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", clock="wall")
    record.write("step", "learner 0", 1.0)
    record.abandon()
    record.abandon()
    record.write("step", "learner 0", 2.0)
    assert len(lines_of(tmp_path / "record.jsonl")) == 1


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_once() -> None:
    record = Record(Full(), clock="wall")
    with pytest.raises(CheckpointError, match="the record: cannot be written: No space left on device"):
        record.write("step", "learner 0", 1.0)
    record.write("step", "learner 0", 2.0)
    record.close(3.0)


def test_parts_are_merged_by_time_behind_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_text('{"event":"step","time":9.0}\n')
    (tmp_path / "record-0.jsonl").write_text('{"event":"a","time":1.0}\n{"event":"c","time":3.0}\n{"event":"d","ti')
    (tmp_path / "record-1.jsonl").write_text('{"event":"b","time":2.0}\n')
    merge_records(tmp_path)
    assert [line["time"] for line in lines_of(tmp_path / "record.jsonl")] == [9.0, 1.0, 2.0, 3.0]
    assert list(tmp_path.glob("record-*")) == []


def test_parts_may_be_kept(tmp_path: Path) -> None:
    (tmp_path / "record-0.jsonl").write_text('{"event":"a","time":1.0}\n')
    for _ in range(2):  # the second time gives the same
        merge_records(tmp_path, keep=True)
        assert [line["event"] for line in lines_of(tmp_path / "record.jsonl")] == ["a"]
    assert (tmp_path / "record-0.jsonl").exists()

"""Readers of a run's files: complete lines are read, and what is wrong is reported."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from roundelay.runs.reader import (
    Problems,
    Tail,
    finite,
    parse_line,
    read_lines,
    read_object,
    read_settings,
    record_files,
)
from roundelay.runs.record import Record, merge_records


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'{"a": 1}\n', {"a": 1}),
        (b"[1]", None),
        (b"", None),
        (b'{"a": ', None),
        (b'{"\x80": 1}', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_line_is_an_object_or_nothing(line: bytes, read: dict[str, int] | None) -> None:
    assert parse_line(line) == read


def test_nan_of_a_diverged_run_is_read() -> None:
    line = parse_line(b'{"loss": NaN}')
    assert line is not None
    assert math.isnan(line["loss"])
    assert finite(line["loss"]) is None


def test_lines_that_are_incomplete_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"b\n{"c": 3}\n{"d')
    problems: Problems = []
    assert list(read_lines(path, problems)) == [{"a": 1}, {"c": 3}]
    assert problems == ["record.jsonl: 2 lines are incomplete, the last is line 5"]
    assert list(read_lines(tmp_path / "none", problems)) == []
    assert problems[-1] == "none cannot be read: No such file or directory"


def test_a_tail_returns_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    tail = Tail(path)
    path.write_bytes(b"one\ntw")
    assert tail.new_lines() == [b"one"]
    assert tail.new_lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.new_lines() == [b"two", b"three"]


def test_objects_and_settings_that_are_missing_or_wrong(tmp_path: Path) -> None:
    problems: Problems = []
    assert read_object(tmp_path / "a.json", problems) == {}
    assert read_object(tmp_path / "a.json", problems, needed=True) == {}
    (tmp_path / "b.json").write_text("[]")
    assert read_object(tmp_path / "b.json", problems) == {}
    (tmp_path / "c.toml").write_text("x =")
    assert read_settings(tmp_path / "c.toml", problems) == {}
    assert problems == ["a.json is missing", "b.json is not a JSON object", "c.toml cannot be read"]


def test_records_are_merged_by_time(tmp_path: Path) -> None:
    for rank, times in enumerate(([0.5, 2.0], [1.0])):
        record = Record(tmp_path / f"record-{rank}.jsonl", clock="wall")
        for time in times:
            record.write("step", f"learner {rank}", time)
        record.abandon()
    with (tmp_path / "record-1.jsonl").open("ab") as file:
        file.write(b'{"event": "st')
    assert len(record_files(tmp_path)) == 2
    merge_records(tmp_path)
    assert record_files(tmp_path) == [tmp_path / "record.jsonl"]
    merged = [(line["member"], line["time"]) for line in read_lines(tmp_path / "record.jsonl")]
    assert merged == [("learner 0", 0.5), ("learner 1", 1.0), ("learner 0", 2.0)]
    assert not list(tmp_path.glob("record-*"))

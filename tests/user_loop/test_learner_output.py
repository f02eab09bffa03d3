"""Where the output of learners goes."""

from __future__ import annotations

import os
from pathlib import Path

from roundelay.user_loop.learner_output import LearnerOutput, LineReader


def test_lines_get_a_prefix_and_progress_bars_their_last_state() -> None:
    written: list[str] = []
    reader = LineReader("[1] ", written.append)
    os.write(reader.theirs, b"one\ntw")
    assert reader.read()
    os.write(reader.theirs, b"o\n10 %\r20 %\r\nend")
    assert reader.read()
    assert written == ["[1] one\n", "[1] two\n", "[1] 20 %\n"]
    os.close(reader.theirs)
    reader.close()
    assert written[3:] == ["[1] end\n"]


def test_a_stream_that_is_still_open_elsewhere_does_not_block() -> None:
    written: list[str] = []
    reader = LineReader("", written.append)
    assert reader.read(), "nothing has come"
    os.write(reader.theirs, b"late")
    reader.close()
    os.close(reader.theirs)
    assert written == ["late\n"]


def test_logs_are_files_of_all_but_the_first(tmp_path: Path) -> None:
    first, second = LearnerOutput(0, tmp_path), LearnerOutput(1, tmp_path)
    assert first.streams[1:] == (1, 2)
    os.write(second.streams[1], b"x\n")
    os.write(second.streams[2], b"y\n")
    first.started()
    second.started()
    assert [path.name for path in tmp_path.iterdir()] == ["learner-1.txt"]
    assert (tmp_path / "learner-1.txt").read_text() == "x\ny\n"

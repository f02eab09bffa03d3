"""What a person reads while a study is computed, without a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.cli.screen.study_display import StudyDisplay


class Cell:
    name = "bmuf-4"


DONE: dict[str, Any] = {
    "status": "done", "name": "bmuf-4", "scores": {"loss": 0.5}, "seconds": 1.0, "clock": "virtual",
}  # fmt: skip


def test_a_line_per_cell_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("roundelay.cli.screen.study_display.time.monotonic", lambda: now[0])
    with StudyDisplay() as display:
        display.planned(4, 0)
        display.started(0, Cell())  # type: ignore[arg-type]  # only the name is read
        display.progressed(0, 0.0)
        now[0] = 5.0
        display.progressed(0, 0.5)
        now[0] = 10.0
        display.finished(0, DONE)
        for _ in range(3):
            display.finished(0, DONE | {"status": "failed", "error": "it was killed"})
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "4 cells",
        "study: about 40 s in all",
        "1/4  bmuf-4  loss 0.5000  1.000 s virtual  about 30 s left",
    ]
    assert lines[-1] == "4/4  bmuf-4  failed: it was killed"


def test_a_study_that_is_stopped_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        with StudyDisplay() as display:
            display.planned(4, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert capsys.readouterr().err.splitlines() == [
        "4 cells, 2 of them computed before",
        "stopped after 2 of 4 cells; run the same command to continue",
    ]

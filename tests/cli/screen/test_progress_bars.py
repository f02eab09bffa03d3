"""Progress bars are for terminals alone."""

from __future__ import annotations

import pytest

from roundelay.cli.screen.progress_bars import bars


def test_without_a_terminal_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as show:
        for done in range(3):
            show("features", done, 2)
        show("graph", 1, 1)
    said = capsys.readouterr()
    assert (said.out, said.err.strip()) == ("", "")

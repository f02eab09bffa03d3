"""Curves and bars in text."""

from __future__ import annotations

from roundelay.cli.screen.text_plots import bar, curve, thin


def test_curves_and_bars() -> None:
    drawn = curve([(0, 4.0), (1, 1.0), (2, 3.0)], 10, 3)
    assert [len(row) for row in drawn] == [13, 13, 13]
    assert drawn[0].startswith("4 │")
    assert drawn[2].startswith("1 │")
    assert curve([], 10, 2) == ["", ""]
    assert "log" in curve([(0, 100.0), (1, 1.0)], 10, 3)[1]
    assert curve([(0, 1.0)], 4, 2)[0].startswith("1 │")
    assert thin([(0, 1.0), (1, float("nan")), (2, 3.0), (3, 5.0)], 2) == [(0.0, 1.0), (2.5, 4.0)]
    assert (bar(0.5, 4), bar(2.0, 3), bar(0.0, 2)) == ("██  ", "███", "  ")

"""Curves in a terminal."""

from __future__ import annotations

from roundelay.theory.plot import terminal


def test_a_terminal_plot_has_the_curves_where_they_belong() -> None:
    drawn = terminal({"slow": [0.9**k for k in range(100)], "fast": [0.3**k for k in range(100)]}, width=40, height=10)
    lines = drawn.splitlines()
    assert len(lines) == 13
    assert lines[0].startswith(" 100 %")
    assert "o slow  x fast" in lines[-1]
    assert sum(line.count("o") for line in lines[:10]) >= 30
    lowest = max(k for k, line in enumerate(lines[:10]) if "o" in line)
    assert lines[lowest].startswith("   1 %") or lowest > 7

"""Tables of events and of significance."""

from __future__ import annotations

import pytest

from roundelay.report.event_tables import holm


def test_holm_adjusts_for_how_many_there_are() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]

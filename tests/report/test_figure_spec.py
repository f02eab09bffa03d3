"""Figures as data."""

from __future__ import annotations

import json

from roundelay.report.figure_spec import Axis, Bar, Figure, Series, Style


def figure(**more: object) -> Figure:
    return Figure("loss", "Loss", "Of all.", "lines", Axis("frames"), Axis("loss", "%"), **more)  # type: ignore[arg-type]


def test_an_axis_has_its_unit_in_its_title() -> None:
    assert (Axis("time", "s").title, Axis("learners").title) == ("time (s)", "learners")


def test_a_figure_is_empty_without_points_notes_and_bars() -> None:
    style = Style("bmuf", 4)
    assert figure().empty
    assert figure(series=[Series(style, "bmuf", [])]).empty
    assert not figure(series=[Series(style, "bmuf", [], "not reached")]).empty
    assert not figure(series=[Series(style, "bmuf", [[1.0, 2.0]])]).empty
    assert not figure(bars=[Bar(style, "bmuf", {"compute": 1.0})]).empty


def test_a_figure_is_plain_json() -> None:
    plain = json.loads(json.dumps(figure(series=[Series(Style("bmuf", 4), "bmuf", [[1.0, 2.0]])]).plain()))
    assert plain["y"]["title"] == "loss (%)"
    assert plain["series"][0]["style"] == {"strategy": "bmuf", "learners": 4, "facet": ""}

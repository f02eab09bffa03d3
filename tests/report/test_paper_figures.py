from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.report.figure_spec import Axis, Bar, Figure, Rule, Series, Style
from roundelay.report.paper_figures import draw_all

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
STRATEGIES = ["adpsgd", "b<b>", "bmuf"]
ONE, OTHER = Style("bmuf", 4, "4 learners"), Style("b<b>", 4, "4 learners")
FIGURES = [
    Figure("lines", "Lines", "", "lines", Axis("learners", scale="log"), Axis("speed-up", scale="log"),
           [Series(ONE, "bmuf", [[1, 1], [4, 3.2]]), Series(OTHER, "b<b>", [[1, 1, 0.9, 1.1], [4, 2, 1.5, 3]]),
            Series(ONE, "empty", [])], rules=[Rule("ideal", slope=1.0), Rule("target", y=2.0)]),
    Figure("dots", "Dots", "", "dots", Axis("word error rate", "%"), Axis("strategy"),
           [Series(ONE, "bmuf", [[3.0, 2.5, 3.5]]), Series(OTHER, "b<b>", [], "not reached")]),
    Figure("stack", "Stack", "", "stack", Axis("share", "%"), Axis("strategy"),
           bars=[Bar(ONE, "bmuf", {"compute": 80.0, "wait": 20.0})]),
    Figure("ridges", "Ridges", "", "ridges", Axis("staleness"), Axis("share", "%"),
           [Series(ONE, "bmuf", [[-0.5, 0.5, 30.0], [0.5, 1.5, 70.0]])]),
]  # fmt: skip


@pytest.mark.slow
def test_every_kind_is_drawn_in_every_format(tmp_path: Path) -> None:
    written = draw_all(FIGURES, STRATEGIES, tmp_path, ("svg", "png", "pdf"))
    assert [path.name for path in written] == [f"{f.name}.{form}" for f in FIGURES for form in ("svg", "png", "pdf")]
    for path in written:
        begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[path.suffix[1:]]
        assert path.read_bytes().startswith(begins)
    words = "".join(ET.parse(tmp_path / "dots.svg").getroot().itertext())
    assert "not reached" in words
    assert "b<b>" in words
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".pdf"}  # no temporary file is left


def test_the_same_figure_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        draw_all(FIGURES[:1], STRATEGIES, tmp_path / name, ("svg",))
    assert (tmp_path / "a" / "lines.svg").read_bytes() == (tmp_path / "b" / "lines.svg").read_bytes()


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown format 'jpeg'; use one of svg, png, pdf"):
        draw_all(FIGURES, STRATEGIES, tmp_path, ("jpeg",))

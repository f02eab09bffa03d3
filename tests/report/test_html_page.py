"""Data embedded in a page."""

from __future__ import annotations

from dataclasses import replace

from roundelay.report import html_page
from roundelay.report.html_page import embed
from roundelay.report.tables import Item, Line, Table


def test_data_cannot_end_its_element() -> None:
    text = embed('a"b', {"x": "</script><!--", "y": "\u2028"})
    assert text.count("</script>") == 1
    assert "<!--" not in text
    assert "\u2028" not in text


def test_lines_that_may_be_chance_are_folded_away() -> None:
    lines = [Line([Item("a"), Item("differ")]), Line([Item("b"), Item("not significant")])]
    table = Table(
        "pairs", "Pairs", "About them.", ["pair", "verdict"], lines, fold=1, folded="1 pair that may be chance"
    )
    page = html_page._table(table)
    shown, _, rest = page.partition("<details>")
    assert ("differ" in shown, "not significant" in shown) == (True, False)
    assert "<summary>1 pair that may be chance</summary>" in rest
    assert "not significant" in rest
    assert "No pair differs" in html_page._table(replace(table, fold=0))
    assert "<details>" not in html_page._table(replace(table, fold=2))

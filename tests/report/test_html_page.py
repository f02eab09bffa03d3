"""Data embedded in a page."""

from __future__ import annotations

from roundelay.report.html_page import embed


def test_data_cannot_end_its_element() -> None:
    text = embed('a"b', {"x": "</script><!--", "y": "\u2028"})
    assert text.count("</script>") == 1
    assert "<!--" not in text
    assert "\u2028" not in text

"""Tables as CSV and HTML."""

from __future__ import annotations

import csv
import io

from roundelay.report.tables import Item, Line, Table, to_csv, to_html


def test_spreadsheets_get_no_formulas() -> None:
    table = Table("t", "T", "", ["a", "b"], [Line([Item("=1+1"), Item("-5", -5.0)])])
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [["a", "b"], ["'=1+1", "-5.0"]]
    assert "&lt;b&gt;" in to_html(Table("t", "T", "", ["<b>"], []))

from __future__ import annotations

import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_files import HOSTILE, decode_run, read_csv, write_run
from roundelay.errors import SettingsError
from roundelay.report.report_writer import find_runs, make_report_data, make_sections, write_report


class Page(HTMLParser):
    """What a browser would make of a page: scripts, tags, data, and headings of each table."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.text = page.read_text(encoding="utf-8")
        self.scripts: list[dict[str, str | None]] = []
        self.data: dict[str, object] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self._open: str | None = None
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.handlers += [name for name in given if name.startswith("on")]
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        if tag == "script":
            self.scripts.append(given)
            self._open = given.get("id")

    def handle_data(self, data: str) -> None:
        if self._open is not None and data.strip():
            self.data[self._open] = json.loads(data)
            self._open = None


def test_the_page_needs_nothing_else(report: Path) -> None:
    page = Page(report)
    assert all(address.startswith("#") for address in page.addresses)
    assert "http://www.w3.org/2000/svg" in page.text  # a name, not an address that is fetched
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.text)
    assert len([script for script in page.scripts if script.get("type") != "application/json"]) == 1
    assert "default-src 'none'" in page.text


def test_everything_asked_for_is_there(report: Path) -> None:
    figures = {name.removeprefix("data-") for name in Page(report).data if name.startswith("data-")}
    assert figures >= {
        "error", "loss-frames", "loss-time-virtual", "loss-time-wall", "training-loss", "time-to-target-virtual",
        "speedup-throughput-virtual", "efficiency-throughput-virtual", "speedup-target-virtual", "shares",
        "shares-learner", "staleness", "distance-frames", "distance", "bytes", "straggler-throughput-virtual",
        "straggler-loss-virtual", "throughput-virtual", "throughput-wall",
    }  # fmt: skip
    files = {path.name for path in (report.parent / "report").iterdir()}
    assert files >= {
        "results-virtual.csv",
        "results-wall.csv",
        "runs-virtual.csv",
        "runs-wall.csv",
        "events-virtual.csv",
    }


def test_events_of_a_killed_learner_are_listed(report: Path) -> None:
    rows = read_csv(report.parent / "report" / "events-virtual.csv")
    assert {row["run"] for row in rows} == {"adpsgd-4-killed"}
    assert {"fault", "lost"} <= {row["event"] for row in rows}


def test_clocks_are_never_mixed(runs: Path) -> None:
    board = make_report_data([runs], {"score": "error", "value": 0.79})
    assert board.clocks == ["virtual", "wall"]
    clock_of: dict[tuple[str, int], set[str]] = defaultdict(set)
    for cell in board.cells.values():
        clock_of[cell["strategy"], cell["learners"]].add(cell["clock"])
    walls = {name for name, cell in board.cells.items() if cell["clock"] == "wall"}
    assert walls == {"processes-2"}
    for section in make_sections(board):
        for figure in section.figures:
            if figure.clock:
                clocks = {clock for series in figure.series if series.style.learners
                          for clock in clock_of[series.style.strategy, series.style.learners]}  # fmt: skip
                assert clocks <= {figure.clock}, figure.name
            timed = any(re.search(r"\btime\b|second", axis.label) or axis.unit == "s" for axis in (figure.x, figure.y))
            assert figure.clock or not timed or figure.kind == "stack", figure.name  # whose times are shares
        for table in section.tables:
            if any(column.startswith("time") for column in table.columns):
                assert table.name.endswith(("virtual", "wall"))
                other = "wall" if table.name.endswith("virtual") else "virtual"
                assert not any(other in column for column in table.columns)


def test_the_same_runs_give_the_same_bytes(runs: Path, report: Path, tmp_path: Path) -> None:
    again = write_report(runs, tmp_path, target={"score": "error", "value": 0.79})
    assert again.read_bytes() == report.read_bytes()
    assert (tmp_path / "report.json").read_bytes() == (report.parent / "report.json").read_bytes()


def test_report_json_is_plain(report: Path) -> None:
    whole = json.loads((report.parent / "report.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert whole["summary"]["answer"]["headline"]
    assert {figure["name"] for figure in whole["figures"]} >= {"loss-frames", "shares"}


def test_one_run_speaks_for_itself(runs: Path, tmp_path: Path) -> None:
    page = write_report(runs / "adpsgd-4", tmp_path).read_text(encoding="utf-8")
    assert "adpsgd with 4 learners" in page
    assert "Gradients were" in page


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "\u2215")  # the one sign that a folder's name cannot have
    run = write_run(tmp_path / "runs" / name, HOSTILE, 2)
    decode_run(run, 3, name="=cmd()<script>alert(1)<\u2215script>")
    with (run / "record.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"event": HOSTILE, "member": HOSTILE, "clock": "wall", "time": 1.0, "reason": HOSTILE}) + "\n"
        )
    report = write_report(tmp_path / "runs", tmp_path / "out")
    page = Page(report)
    assert "img" not in page.tags
    assert not page.handlers
    assert len([script for script in page.scripts if script.get("type") != "application/json"]) == 1
    assert "<script>alert" not in page.text
    assert page.data["page"]["strategies"] == [HOSTILE]  # type: ignore[index]


def test_runs_in_any_state_are_shown_as_what_they_are(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "good", "bmuf", 2)
    cut = write_run(runs / "cut", "adpsgd", 2)
    (cut / "model.json").unlink()
    text = (cut / "record.jsonl").read_text()
    (cut / "record.jsonl").write_text(text[: len(text) // 3])
    lost = write_run(runs / "lost", "easgd", 2)
    (lost / "record.jsonl").unlink()
    (lost / "model.json").unlink()
    nan = write_run(runs / "nan", "asgd", 2)
    with (nan / "record.jsonl").open("a") as file:
        file.write('{"event":"step","member":"learner 0","clock":"wall","time":9.0,"frames":16,"loss":NaN}\n')
    broken = write_run(runs / "broken", "averaging", 2)
    (broken / "settings.toml").write_text("learners = [")
    report = write_report(runs, tmp_path / "out", target={"score": "error", "value": 1e-9})
    summary = json.loads((tmp_path / "out" / "report.json").read_text())["summary"]
    assert {cell["name"]: cell["status"] for cell in summary["cells"]} == {
        "broken": "done", "cut": "interrupted", "good": "done", "lost": "failed", "nan": "diverged",
    }  # fmt: skip
    page = report.read_text(encoding="utf-8")
    for words in (
        "interrupted",
        "diverged",
        "there is no record",
        "is incomplete",
        "not reached",
        "settings.toml cannot be read",
    ):
        assert words in page, words


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="neither a run nor a study"):
        find_runs([tmp_path])
    with pytest.raises(SettingsError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    one, other = write_run(tmp_path / "a", "bmuf", 1), write_run(tmp_path / "b", "bmuf", 1)
    with pytest.raises(SettingsError, match="--out"):
        write_report([one, other])


@pytest.mark.slow
def test_a_hundred_runs_fit_in_a_page(tmp_path: Path) -> None:
    for i in range(100):
        write_run(tmp_path / "runs" / f"run-{i}", f"strategy-{i % 9}", 8, clock="virtual", steps=100 + i)
    report = write_report(tmp_path / "runs", tmp_path / "out")
    assert report.stat().st_size < 3_000_000

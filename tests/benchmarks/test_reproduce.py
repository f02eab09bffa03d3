"""A claim's page, from a study that takes a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reproduce

STUDY = """
title = "Two rates"
experiment = { task = { name = "tiny", frames_per_epoch = 640, hidden = [8] }, batch = { size = 16 }, threads = 1 }
strategies = ["synchronous", "averaging"]
learners = [2]
seeds = [1, 2]
target = { value = 0.6 }

[claim]
says = "Averaging is as good."
source = "a paper"
hypothesis = "It is."
rule = "Within a factor of 10: holds."
limits = "Anything else."

[[claim.checks]]
says = "as good"
of = { strategy = "averaging", learners = 2 }
than = { strategy = "synchronous", learners = 2 }
at_most = 10.0
"""


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, place in (("CLAIMS", "claims"), ("PAGES", "pages"), ("RESULTS", "results.md")):
        monkeypatch.setattr(reproduce, name, tmp_path / place)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "C01.toml").write_text(STUDY)
    (tmp_path / "results.md").write_text(f"before\n{reproduce.BEGIN}\nold\n{reproduce.END}\nafter\n")
    return tmp_path


@pytest.mark.slow
def test_the_page_is_rebuilt_and_figures_are_compared(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.reproduce("C01", rooms / "one", jobs=1)
    page = (rooms / "pages" / "C01.md").read_text()
    assert "# C1: Two rates\n\n**Holds.**" in page
    assert "| averaging | 2 |" in page
    record = json.loads((rooms / "pages" / "C01.json").read_text())
    assert [record["verdict"], len(record["cells"])] == ["holds", 6]  # two seeds of one learner besides
    assert reproduce.reproduce("C01", rooms / "two", jobs=1)  # computed again
    assert "all figures agree to the bit" in capsys.readouterr().out
    assert json.loads((rooms / "pages" / "C01.json").read_text()) == record
    record["cells"][0]["scores"]["loss"] += 1e-15
    (rooms / "pages" / "C01.json").write_text(json.dumps(record))
    assert not reproduce.reproduce("C01", rooms / "two", jobs=1)
    assert "1 differ from the record" in capsys.readouterr().out


def test_the_table_names_what_was_not_run(rooms: Path) -> None:
    reproduce.write_table()
    text = (rooms / "results.md").read_text()
    assert "| C1 | Averaging is as good. | not run yet |  | `make reproduce CLAIM=C01` |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "old" not in text


def test_an_unknown_claim_is_said(rooms: Path) -> None:
    with pytest.raises(SystemExit, match="unknown claim 'C99'; use one of C01"):
        reproduce.reproduce("C99", rooms, jobs=1)

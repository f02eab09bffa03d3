"""One shard of the synthetic corpus: files, tables and errors, in this process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import soundfile

from roundelay.corpora.synthetic.script import ScriptShard, plan_take
from roundelay.corpora.synthetic.shard import RATE, main, make_shard

pytest.importorskip("espeakng_loader", reason="the extra synthetic is not installed")


def test_rows_say_what_was_written(tmp_path: Path) -> None:
    rows = make_shard(tmp_path, 1, ScriptShard(0, "dev", 0, 2))
    assert len(rows) == sum(plan_take(1, "dev", number).num_utterances for number in range(2))
    for row in rows:
        data = (tmp_path / row.path).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (row.sha256, row.size_bytes)
        samples, rate = soundfile.read(tmp_path / row.path)
        assert (rate, len(samples)) == (RATE, round(row.seconds * RATE))
        assert len(row.pronunciations) == len(row.words)
        for phones in (row.phones, row.closures):  # from the first sample to the last, without gaps
            assert phones[0][0] == 0.0
            assert sum(seconds for _, seconds, _ in phones) == pytest.approx(row.seconds, abs=0.001 * len(phones))
    noisy = [row for row in rows if row.clean is not None]
    assert {row.clean for row in noisy} <= {row.id for row in rows}


def test_a_shard_of_nothing_is_empty(tmp_path: Path) -> None:
    assert make_shard(tmp_path, 1, ScriptShard(0, "dev", 4, 4)) == []


def test_an_error_is_one_line_for_the_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flac").touch()  # where a folder is to be
    shard = json.dumps({"number": 0, "split": "dev", "begin": 0, "end": 1})
    assert main([str(tmp_path), "1", str(tmp_path / "result.json"), shard]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()

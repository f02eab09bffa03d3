"""``roundelay decode``, and bad input to it and to the other commands that use a trained run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import decodable_run
from command_line import invoke
from roundelay.cli import main
from roundelay.cli.decode import command as decode

GIVEN = ["--scale", "0.3", "--penalty", "0", "--prior", "0.5"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return decodable_run.copy_run(tmp_path)


def test_decode_reports_in_words_and_in_json(run: Path) -> None:
    said = invoke(decode, run, "--language", "flat", *GIVEN)
    assert said.startswith("0.00 % word errors on test with flat (95 %: 0.00 to 0.00); 0 of 11 words: 0 inserted")
    assert said.splitlines()[-1] == str(run / "decode" / "data-test-flat")
    report = json.loads(invoke(decode, run, "--data", decodable_run.place() / "corpus", "--json", *GIVEN))
    assert report["language"] == "bigram"
    assert report["wer"] == 0
    assert report["folder"] == str(run / "decode" / "corpus-test-bigram")


def test_decode_compares_two_runs(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    said = invoke(decode, run, "--language", "flat", "--against", tmp_path / "other", *GIVEN)
    assert "(0.00 %): +0.00 points (95 %: +0.00 to +0.00), p = 1.0000: could be chance" in said
    report = json.loads(invoke(decode, run, "--language", "flat", "--against", tmp_path / "other", "--json", *GIVEN))
    assert report["against"]["run"] == str(tmp_path / "other")
    assert report["against"]["p"] == 1


def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Call the program as from a shell, and return the line that it ends with."""
    monkeypatch.setattr("sys.argv", ["roundelay", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err


def test_bad_input_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, expected in (
        (("decode", tmp_path / "nowhere"), "does not exist"),
        (("decode", tmp_path), "no trained acoustic model"),
        (("decode", run, "--language", "bigam"), "did you mean 'bigram'"),
        (("decode", run, "--split", "tset", *GIVEN), "did you mean 'test'"),
        (("transcribe", tmp_path, run / "model.json"), "no trained acoustic model"),
        (("transcribe", run, run / "model.json", *GIVEN), "model.json: not audio that can be read"),
        (("export", run), "roundelay: export: no format given; use --onnx"),
    ):
        assert expected in complaint(monkeypatch, capsys, *arguments)

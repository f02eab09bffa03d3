"""The commands that use a trained run: decode, transcribe, export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import decodable_run
from roundelay.cli import main
from roundelay.cli.decode import command as decode
from roundelay.cli.export import command as export
from roundelay.cli.transcribe import command as transcribe
from roundelay.errors import DataError

GIVEN = ["--scale", "0.3", "--penalty", "0", "--prior", "0.5"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(decodable_run.place() / "run", tmp_path / "run", ignore=shutil.ignore_patterns("decode"))
    (tmp_path / "data").symlink_to(decodable_run.place() / "data")
    return tmp_path / "run"


def call(command: Any, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_decode_reports_in_words_and_in_json(run: Path) -> None:
    said = call(decode, run, "--language", "flat", *GIVEN)
    assert said.startswith("0.00 % word errors on test with flat (95 %: 0.00 to 0.00); 0 of 11 words: 0 inserted")
    assert said.splitlines()[-1] == str(run / "decode" / "data-test-flat")
    report = json.loads(call(decode, run, "--data", decodable_run.place() / "corpus", "--json", *GIVEN))
    assert report["language"] == "bigram"
    assert report["wer"] == 0
    assert report["folder"] == str(run / "decode" / "corpus-test-bigram")


def test_decode_compares_two_runs(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    said = call(decode, run, "--language", "flat", "--against", tmp_path / "other", *GIVEN)
    assert "(0.00 %): +0.00 points (95 %: +0.00 to +0.00), p = 1.0000: could be chance" in said
    report = json.loads(call(decode, run, "--language", "flat", "--against", tmp_path / "other", "--json", *GIVEN))
    assert report["against"]["run"] == str(tmp_path / "other")
    assert report["against"]["p"] == 1


def test_transcribe_prints_text_with_times(run: Path) -> None:
    audio = decodable_run.place() / "corpus" / "test"
    words = dict(line.split(maxsplit=1) for line in (audio / "text").read_text().splitlines())
    name = sorted(words)[0]
    said = call(transcribe, run, audio / f"{name}.wav", "--language", "flat", *GIVEN)
    begin, end, text = said.strip().split(maxsplit=2)
    assert text == words[name]
    assert 0.05 < float(begin) < float(end)
    found = json.loads(call(transcribe, run, audio, "--language", "flat", "--json", *GIVEN))
    assert {Path(file["file"]).stem: file["text"] for file in found["files"]} == words
    assert [word["word"] for word in found["files"][0]["words"]] == words[name].split()


def test_transcribe_takes_the_weights_that_another_run_chose(run: Path) -> None:
    audio = sorted((decodable_run.place() / "corpus" / "test").glob("*.wav"))[0]
    with pytest.raises(DataError, match="no weights tuned for flat; decode with it first"):
        call(transcribe, run, audio, "--language", "flat", "--weights-of", run)
    call(decode, run, "--split", "dev", "--language", "flat")
    weights = json.loads((run / "decode" / "tuned-flat.json").read_text())["weights"]
    given = [text for name, value in weights.items() for text in (f"--{name}", value)]
    said = call(transcribe, run, audio, "--language", "flat", "--weights-of", run)
    assert said.strip()
    assert said == call(transcribe, run, audio, "--language", "flat", *given)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_export_prints_one_object(run: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    about = json.loads(call(export, run, "--onnx", "--json"))
    assert Path(about["file"]).stat().st_size == about["bytes"]


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

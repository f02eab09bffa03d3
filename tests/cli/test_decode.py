"""The commands that use a trained run: decode, transcribe, export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import decodable
from roundelay.cli.decode import command as decode
from roundelay.cli.export import command as export
from roundelay.cli.transcribe import command as transcribe

GIVEN = ["--scale", "0.3", "--penalty", "0", "--prior", "0.5"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(decodable.place() / "run", tmp_path / "run", ignore=shutil.ignore_patterns("decode"))
    (tmp_path / "data").symlink_to(decodable.place() / "data")
    return tmp_path / "run"


def call(command: Any, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_decode_reports_in_words_and_in_json(run: Path) -> None:
    said = call(decode, run, "--language", "flat", *GIVEN)
    assert said.startswith("0.00 % word errors on test with flat (95 %: 0.00 to 0.00); 0 of 11 words: 0 inserted")
    assert said.splitlines()[-1] == str(run / "decode" / "data-test-flat")
    report = json.loads(call(decode, run, "--data", decodable.place() / "corpus", "--json", *GIVEN))
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
    audio = decodable.place() / "corpus" / "test"
    words = dict(line.split(maxsplit=1) for line in (audio / "text").read_text().splitlines())
    name = sorted(words)[0]
    said = call(transcribe, run, audio / f"{name}.wav", "--language", "flat", *GIVEN)
    begin, end, text = said.strip().split(maxsplit=2)
    assert text == words[name]
    assert 0.05 < float(begin) < float(end)
    found = json.loads(call(transcribe, run, audio, "--language", "flat", "--json", *GIVEN))
    assert {Path(file["file"]).stem: file["text"] for file in found["files"]} == words
    assert [word["word"] for word in found["files"][0]["words"]] == words[name].split()


def test_export_asks_for_a_format(run: Path) -> None:
    complained = real("export", run)
    assert complained.returncode == 2
    assert complained.stderr == "roundelay: export: no format is asked for; give --onnx\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_export_prints_one_object(run: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    about = json.loads(call(export, run, "--onnx", "--json"))
    assert Path(about["file"]).stat().st_size == about["bytes"]


def real(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own."""
    code = "from roundelay.cli import main; main()"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_bad_input_is_one_line(run: Path, tmp_path: Path) -> None:
    lines = []
    for arguments in (
        ("decode", tmp_path / "nowhere"),
        ("decode", tmp_path),
        ("decode", run, "--language", "bigam"),
        ("decode", run, "--split", "tset", *GIVEN),
    ):
        complained = real(*arguments)
        assert complained.returncode == 2
        assert complained.stdout == ""
        lines.append(complained.stderr)
        assert lines[-1].count("\n") == 1, lines[-1]
    assert "does not exist" in lines[0]
    assert "no trained acoustic model there" in lines[1]
    assert "did you mean 'bigram'" in lines[2]
    assert "did you mean 'test'" in lines[3]

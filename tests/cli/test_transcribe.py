"""``roundelay transcribe``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import decodable_run
from command_line import invoke
from roundelay.cli.decode import command as decode
from roundelay.cli.transcribe import command as transcribe
from roundelay.errors import DataError

GIVEN = ["--scale", "0.3", "--penalty", "0", "--prior", "0.5"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return decodable_run.copy_run(tmp_path)


def test_transcribe_prints_text_with_times(run: Path) -> None:
    audio = decodable_run.place() / "corpus" / "test"
    words = dict(line.split(maxsplit=1) for line in (audio / "text").read_text().splitlines())
    name = sorted(words)[0]
    said = invoke(transcribe, run, audio / f"{name}.wav", "--language", "flat", *GIVEN)
    begin, end, text = said.strip().split(maxsplit=2)
    assert text == words[name]
    assert 0.05 < float(begin) < float(end)
    found = json.loads(invoke(transcribe, run, audio, "--language", "flat", "--json", *GIVEN))
    assert {Path(file["file"]).stem: file["text"] for file in found["files"]} == words
    assert [word["word"] for word in found["files"][0]["words"]] == words[name].split()


def test_transcribe_takes_the_weights_that_another_run_chose(run: Path) -> None:
    audio = sorted((decodable_run.place() / "corpus" / "test").glob("*.wav"))[0]
    with pytest.raises(DataError, match="no weights tuned for flat; decode with it first"):
        invoke(transcribe, run, audio, "--language", "flat", "--weights-of", run)
    invoke(decode, run, "--split", "dev", "--language", "flat")
    weights = json.loads((run / "decode" / "tuned-flat.json").read_text())["weights"]
    given = [text for name, value in weights.items() for text in (f"--{name}", value)]
    said = invoke(transcribe, run, audio, "--language", "flat", "--weights-of", run)
    assert said.strip()
    assert said == invoke(transcribe, run, audio, "--language", "flat", *given)

"""The command line of preparation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import tone_corpus
from command_line import ROUNDELAY
from roundelay.cli.prepare import command
from roundelay.speech.preparation.pipeline import open_prepared

OPTIONS = ["--bins", "23", "--senones", "20", "--gaussians", "30"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tone_corpus.make(tmp_path_factory.mktemp("command") / "corpus", train=6, dev=2)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own."""
    return subprocess.run([*ROUNDELAY, "prepare", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_prepare_twice(corpus: Path, tmp_path: Path) -> None:
    first = run(corpus, "--out", tmp_path / "data", *OPTIONS, "--export-alignments", "ctm", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert report["done"] == ["corpus", "features", "lexicon", "hmm", "alignment", "graph", "summary"]
    assert report["summary"]["splits"]["train"]["aligned"] == 6
    assert (tmp_path / "data" / "export" / "train.words.ctm").is_file()
    second = run(corpus, "--out", tmp_path / "data", *OPTIONS)
    assert second.returncode == 0
    assert second.stdout.endswith("data: nothing to do\n")
    assert "bigram" in second.stdout


@pytest.mark.slow
def test_adapted_features_and_vectors(corpus: Path, tmp_path: Path) -> None:
    more = ["--adapt", "--vocabulary", "train", "--ivectors"]
    first = run(corpus, "--out", tmp_path / "data", *OPTIONS, *more, "3", "--ivectors-per", "utterance", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert report["done"][-3:] == ["adapted", "ivectors", "summary"]
    assert report["summary"]["adapted"]["dev"]["speakers"] == 2
    assert open_prepared(tmp_path / "data").ivectors("dev").dim == 3
    second = run(corpus, "--out", tmp_path / "data", *OPTIONS, *more, "--ivectors-per", "utterance")
    assert second.returncode == 0, second.stderr
    assert second.stdout.endswith("data: done: ivectors, summary\n")
    assert open_prepared(tmp_path / "data").ivectors("dev").dim == 100


@pytest.mark.slow
def test_bad_input_is_one_line_and_status_2(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("MA M AA\n")
    failed = run(corpus, "--out", tmp_path / "data", *OPTIONS, "--lexicon", tmp_path / "lexicon.txt")
    assert failed.returncode == 2
    assert failed.stdout == ""
    complaint = failed.stderr.splitlines()[-1]
    assert complaint.startswith(f"roundelay: {tmp_path / 'lexicon.txt'}: no pronunciation of AS, ME, SEE")
    assert "Traceback" not in failed.stderr


def test_help_shows_examples() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert "roundelay prepare corpora/an4 --out data/an4 --jobs 2" in text
    assert "--export-alignments" in text


@pytest.mark.parametrize(
    "wrong", [["--features", "plp"], ["--jobs", "0"], ["--order", "0"], ["--lexicon", "nowhere.txt"]]
)
def test_wrong_options(wrong: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path), "--out", str(tmp_path / "data"), *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.output

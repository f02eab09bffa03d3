"""What ``--dry-run`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import tone_corpus
from command_line import call


def test_a_run_that_is_not_trained(tmp_path: Path) -> None:
    done = call("train", "tiny", "--dry-run", "--learners", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in (
        'name = "synchronous"',
        "steps: 1600 minibatches",
        "800 per learner",
        "memory:",
        "time:",
        "nothing was",
    ):
        assert words in done.stdout, words
    assert list(tmp_path.iterdir()) == []
    assert json.loads(call("train", "tiny", "--dry-run", "--json").stdout)["minibatches"] == 1600


def test_training_needs_a_folder_only_if_it_trains() -> None:
    assert "--out is missing" in call("train", "tiny").stderr
    assert "not known: steps, memory and time" in call("train", "an4-dnn", "--dry-run").stdout


def test_a_preparation_that_does_nothing(tmp_path: Path) -> None:
    tone_corpus.make(tmp_path / "corpus", train=4, dev=2)
    words = ("prepare", str(tmp_path / "corpus"), "--out", str(tmp_path / "data"), "--dry-run")
    said = call(*words).stdout
    assert "train                4 utterances" in said
    assert "corpus, features, lexicon, hmm, alignment, graph, summary; about" in said
    assert not (tmp_path / "data").exists()
    assert json.loads(call(*words, "--json").stdout)["done"] == []

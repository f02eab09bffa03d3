"""Features of utterances, made by any number of processes."""

from __future__ import annotations

from pathlib import Path

import tone_corpus
from roundelay.corpora.data_directory import read_split
from roundelay.speech.features.array_store import shard_name
from roundelay.speech.features.extraction import Extraction, list_copies
from roundelay.speech.features.mel_features import FeatureSettings


def test_jobs_do_not_change_the_bytes(tmp_path: Path) -> None:
    own = tone_corpus.make(tmp_path / "corpus", train=4, dev=0)
    for jobs in (1, 3):
        extraction = Extraction(
            tmp_path / str(jobs),
            list_copies(read_split(own / "train"), [0.9]),
            FeatureSettings(),
            "speaker",
        )
        extraction.run(jobs)
    assert (tmp_path / "1" / shard_name(0)).read_bytes() == (tmp_path / "3" / shard_name(0)).read_bytes()

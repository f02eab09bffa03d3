"""Utterances of stores, and which of them train the HMM-GMM."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roundelay.speech.features.array_store import write_store
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.preparation.alignment_stage import StoredUtterances, senone_counts


def test_utterances_are_read_from_their_own_stores(tmp_path: Path) -> None:
    stores = {
        name: write_store(tmp_path / name, [(name, np.full((2, 1), value, np.float32))], dim=1)
        for name, value in (("a", 1.0), ("b", 2.0))
    }
    found = StoredUtterances(stores)
    assert list(found) == ["a", "b"]
    assert found["b"].tolist() == [[2.0], [2.0]]
    assert "c" not in found
    assert found.jobs(4) == 1  # too little to share


def test_senones_are_counted_over_splits(tmp_path: Path) -> None:
    Tree.monophone(2).save(tmp_path / "tree.safetensors")
    for split, senones in (("train", [0, 0, 5]), ("more", [5])):
        folder = tmp_path / "alignments" / split / "senones"
        write_store(folder, [("u", np.array(senones, np.int32))], dim=0, dtype="int32")
    assert senone_counts(tmp_path, ["train"]).tolist() == [2, 0, 0, 0, 0, 1]
    assert senone_counts(tmp_path, ["train", "more"]).tolist() == [2, 0, 0, 0, 0, 2]

"""Kinds of features side by side, with a vector per utterance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.speech.features.array_store import write_store
from roundelay.speech.features.minibatches import ChunkMinibatches, FrameMinibatches, UtteranceMinibatches
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.preparation.pipeline import open_prepared


@pytest.mark.parametrize(
    ("kinds", "ivectors", "dim"),
    [
        (["plain"], False, 23),
        (["adapted"], True, 44),
        (["plain", "adapted"], False, 63),
        (["plain", "adapted"], True, 67),
    ],
)
def test_inputs_side_by_side(toned: str, kinds: list[str], ivectors: bool, dim: int) -> None:
    data = open_prepared(toned)
    inputs, senones = data.inputs("train", kinds, ivectors=ivectors), data.alignments("train")
    assert inputs.dim == dim
    name = inputs.ids[3]
    frames = inputs.lengths[3]
    whole = [data.features("train", kind)[name] for kind in kinds]
    whole += [np.repeat(data.ivectors("train")[name], frames, axis=0)] if ivectors else []
    assert np.array_equal(inputs[name], np.concatenate(whole, axis=1))
    assert np.array_equal(inputs.gather(np.array([3]), np.arange(frames)[None])[0], inputs[name])
    assert FrameMinibatches(inputs, senones, 8, left=2, right=1).load(0, 0).inputs.shape == (8, 4 * dim)
    assert ChunkMinibatches(inputs, senones, 4, length=7).load(0, 0).inputs.shape == (4, 7, dim)
    batch = UtteranceMinibatches(inputs, data.labels("train").__getitem__, 3, seed=1).load(0, 0)
    assert batch.inputs.shape[2] == dim


def test_inputs_that_do_not_belong_together(toned: str, tmp_path: Path) -> None:
    data = open_prepared(toned)
    with pytest.raises(DataError, match="its utterances or their lengths are not those of"):
        CombinedInputs([data.features("train"), data.features("dev", "adapted")])
    with pytest.raises(DataError, match="its utterances are not those of"):
        CombinedInputs([data.features("train")], data.ivectors("dev"))
    with pytest.raises(SettingsError, match="at least one kind"):
        data.inputs("train", [])
    empty = write_store(tmp_path / "empty", [("a", np.zeros((0, 3)))], dim=3)
    vector = write_store(tmp_path / "vector", [("a", np.ones((1, 2)))], dim=2)
    assert CombinedInputs([empty], vector)["a"].shape == (0, 5)

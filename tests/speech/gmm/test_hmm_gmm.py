"""A trained HMM-GMM is stored, scores frames and aligns speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artificial_speech import agreement, speech, trained
from roundelay.speech.gmm.hmm_gmm import HmmGmm


def test_new_speech_without_speakers_is_aligned() -> None:
    data = speech(12, seed=0)
    alignments = trained(True).align(data.features, data.transcripts)
    assert agreement(alignments, data).frame_share > 0.8


def test_adaptation_raises_the_likelihood_of_the_path() -> None:
    data, model = speech(), trained(True)
    transforms = model.speaker_transforms(data.features, data.transcripts, data.speakers)
    assert set(transforms.matrices) == {"s0", "s1", "s2", "s3"}
    plain = model.align(data.features, data.transcripts)
    adapted = model.align(data.features, data.transcripts, data.speakers)
    gained = 0.0
    for utterance, speaker in data.speakers.items():
        jacobian = np.linalg.slogdet(transforms.matrices[speaker][:, :-1])[1] * len(data.features[utterance])
        gained += adapted.path(utterance).score + jacobian - plain.path(utterance).score
    assert gained > 0


@pytest.mark.parametrize("adapt", [False, True])
def test_model_comes_back_from_its_folder(tmp_path: Path, adapt: bool) -> None:
    data, model = speech(), trained(adapt)
    model.save(tmp_path / "gmm")
    copy = HmmGmm.load(tmp_path / "gmm")
    before = model.align(data.features, data.transcripts, data.speakers)
    after = copy.align(data.features, data.transcripts, data.speakers)
    assert all(np.array_equal(before[u], after[u]) for u in data.features)
    assert copy.tree.senones(1, 2, 3) == model.tree.senones(1, 2, 3)


def test_scores_cover_all_senones() -> None:
    data, model = speech(), trained()
    frames = model.model.front_end(data.features["s0-000"], None)
    scores = model.unadapted.gmm.score(frames, np.arange(model.tree.num_senones))
    assert scores.shape == (model.tree.num_senones, len(frames))

"""Artificial speech whose alignment is known, and an HMM-GMM trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from roundelay.speech.gmm.alignment import Alignments
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.gmm_training import GmmSettings, train_gmm
from roundelay.speech.gmm.hmm_gmm import HmmGmm, ModelLexicon
from segment_agreement import SegmentAgreement, compare_segments

NAMES = ["sil", "a", "e", "i", "o", "u"]
SETTINGS = GmmSettings(
    input="mfcc", num_senones=24, num_gaussians=40, mono_gaussians=24, mono_iterations=8, iterations=5, num_projected=6
)
LEXICON = ModelLexicon(
    NAMES, {"AE": [("a", "e")], "IO": [("i", "o"), ("i", "u")], "U": [("u",)], "EA": [("e", "a", "i")]}
)


@dataclass
class Speech:
    features: dict[str, Array]
    transcripts: dict[str, list[str]]
    speakers: dict[str, str]
    truth: dict[str, list[tuple[str, int, int]]]


@cache
def speech(count: int = 60, seed: int = 0) -> Speech:
    """Utterances of four speakers, each with a transform of its own; every HMM state has a mean of its own."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 4, (len(NAMES), 3, 4))
    turns = [np.eye(4) + 0.15 * rng.standard_normal((4, 4)) for _ in range(4)]
    made = Speech({}, {}, {}, {})
    words = list(LEXICON.pronunciations)
    for n in range(count):
        name = f"s{n % 4}-{n:03d}"
        said = [words[i] for i in rng.integers(0, 4, rng.integers(1, 4))]
        phones = [0]
        for word in said:
            variants = LEXICON.pronunciations[word]
            phones += [NAMES.index(p) for p in variants[rng.integers(len(variants))]]
            phones += [0] * int(rng.random() < 0.4)
        phones = [*phones, 0] if phones[-1] else phones
        rows: list[Array] = []
        segments = []
        for phone in phones:
            begin = len(rows)
            for state in range(3):
                rows += [means[phone, state] + rng.standard_normal(4) for _ in range(rng.integers(2, 6))]
            segments.append((NAMES[phone], begin, len(rows)))
        made.features[name] = (np.array(rows) @ turns[n % 4].T).astype(np.float32)
        made.transcripts[name], made.speakers[name], made.truth[name] = said, f"s{n % 4}", segments
    return made


@cache
def trained(adapt: bool = False) -> HmmGmm:
    data = speech()
    settings = GmmSettings(**{**SETTINGS.__dict__, "adapt": adapt})
    return train_gmm(data.features, data.transcripts, data.speakers, LEXICON, settings)


def agreement(alignments: Alignments, data: Speech) -> SegmentAgreement:
    return sum((compare_segments(alignments.segments(u), data.truth[u]) for u in alignments), SegmentAgreement())

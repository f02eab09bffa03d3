"""Train HMM-GMM acoustic models: monophones, tied triphones, LDA+MLLT, fMLLR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from roundelay.speech.alignment import Alignments
from roundelay.speech.tree import Tree

Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


class Pronouncer(Protocol):
    """What is needed of a lexicon: phones with silence first, and each word's pronunciations."""

    @property
    def phones(self) -> list[str]:
        """Name the phones, silence first."""
        ...

    @property
    def pronunciations(self) -> dict[str, list[tuple[str, ...]]]:
        """Map each word to its pronunciations."""
        ...


@dataclass(frozen=True, kw_only=True)
class GmmSettings:
    """How to train an HMM-GMM."""

    input: Literal["fbank", "mfcc", "final"] = "fbank"  # log-mel: a DCT is taken; cepstra; or features used as they are
    num_senones: int = 400
    num_gaussians: int = 2000
    iterations: int = 14  # of the triphone stage
    adapt: bool = False  # LDA+MLLT and fMLLR per speaker on top
    seed: int = 0


class AcousticModel:
    """A trained HMM-GMM: front end, tree, Gaussian mixtures, transition probabilities."""

    tree: Tree

    def align(
        self,
        features: Mapping[str, np.ndarray],
        transcripts: Mapping[str, Sequence[str]],
        speakers: Mapping[str, str] | None = None,
        jobs: int = 1,
    ) -> Alignments:
        """Align states to frames, in two passes for an adapted model where speakers are given."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the model as safetensors with a JSON description into a folder."""
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path) -> AcousticModel:
        """Read what ``save`` wrote."""
        raise NotImplementedError


def train_gmm(
    features: Mapping[str, np.ndarray],
    transcripts: Mapping[str, Sequence[str]],
    speakers: Mapping[str, str],
    lexicon: Pronouncer,
    settings: GmmSettings,
    progress: Progress | None = None,
    jobs: int = 1,
) -> AcousticModel:
    """Train an acoustic model from a flat start."""
    raise NotImplementedError

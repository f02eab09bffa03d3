"""Hold alignments of HMM states to frames, and measure how far two segmentations agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

Segment = tuple[str, int, int]  # name, first frame, frame after the last


class Alignments(Mapping[str, np.ndarray]):
    """Senones per frame (int32) of every aligned utterance, and why the others failed."""

    failures: dict[str, str]  # utterance -> reason

    def __getitem__(self, utterance: str) -> np.ndarray:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def segments(self, utterance: str) -> list[Segment]:
        """List the phones of an utterance: name, first frame, frame after the last."""
        raise NotImplementedError

    def words(self, utterance: str) -> list[Segment]:
        """List the words of an utterance likewise; silence between them is left out."""
        raise NotImplementedError

"""Tie triphone states to senones with a decision tree per phone and HMM state."""

from __future__ import annotations

from pathlib import Path


class Tree:
    """Map a phone in its context to the senones of its three HMM states.

    Phones are numbers from 0 in the lexicon's order, silence first; beyond either end of an utterance there is silence.
    """

    num_phones: int
    num_senones: int

    @classmethod
    def monophone(cls, num_phones: int) -> Tree:
        """Make the tree that ignores context: three senones a phone."""
        raise NotImplementedError

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        """Look up the senones of the three states of ``centre`` between ``left`` and ``right``."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write the tree as one safetensors file."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: Path) -> Tree:
        """Read what ``save`` wrote."""
        raise NotImplementedError

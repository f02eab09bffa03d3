"""Inputs of a network: one store of features or several side by side, optionally with one vector per utterance.

Nothing is written: columns are joined when rows are read from the memory-mapped stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError, SettingsError
from roundelay.speech.features.array_store import ArrayStore

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class CombinedInputs:
    """Stores side by side: the columns of each, then the utterance's vector, repeated in every frame."""

    def __init__(self, stores: Sequence[ArrayStore], vectors: ArrayStore | None = None) -> None:
        if not stores:
            raise SettingsError("inputs: at least one kind of features is needed")
        first = stores[0]
        for other in stores[1:]:
            if other.ids != first.ids or not np.array_equal(other.lengths, first.lengths):
                raise DataError(f"{other.folder}: its utterances or their lengths are not those of {first.folder}")
        if vectors is not None and vectors.ids != first.ids:
            raise DataError(f"{vectors.folder}: its utterances are not those of {first.folder}")
        self._stores, self._vectors = list(stores), vectors
        self.folder, self.ids, self.lengths = first.folder, first.ids, first.lengths
        self.dim = sum(store.dim for store in self._all)

    @property
    def _all(self) -> list[ArrayStore]:
        return self._stores if self._vectors is None else [*self._stores, self._vectors]

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._stores[0]

    def __getitem__(self, utterance: str) -> Array:
        """Read an utterance (T, F)."""
        parts = [store[utterance] for store in self._stores]
        if self._vectors is not None:
            parts.append(np.broadcast_to(self._vectors[utterance], (len(parts[0]), self._vectors.dim)))
        return np.concatenate(parts, axis=1)

    def index(self, utterance: str) -> int:
        """Return an utterance's position in ``ids`` and ``lengths``."""
        return self._stores[0].index(utterance)

    def gather(self, numbers: Ints, times: Ints) -> Array:
        """Copy the rows at ``times`` (B, K) of utterances (B): (B, K, F)."""
        # An utterance has one row in the store of vectors, and any time beyond the end reads the last row.
        return np.concatenate([store.gather(numbers, times) for store in self._all], axis=2)

    def finish_checks(self) -> None:
        """Wait until all that was read so far has been compared with its checksum; raise if any is damaged."""
        for store in self._all:
            store.finish_checks()

    def release(self) -> None:
        """Release the memory pages read so far."""
        for store in self._all:
            store.release()


Inputs = ArrayStore | CombinedInputs
"""Features of utterances, from which minibatches are read."""

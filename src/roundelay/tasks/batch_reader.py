"""Minibatches of one or several splits, and frames around them.

Legend: B items, T frames, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from roundelay.devices import to_device
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.features.minibatches import (
    Batch,
    ChunkMinibatches,
    FrameMinibatches,
    Minibatches,
    UtteranceMinibatches,
)
from roundelay.speech.features.network_inputs import CombinedInputs

Labels = Mapping[str, Mapping[str, Sequence[int]]]


class BatchReader:
    """The minibatches of several splits as one epoch, with the splits interleaved evenly."""

    def __init__(self, parts: Sequence[Minibatches], nominal_frames: int) -> None:
        self._parts, self.nominal_frames = list(parts), nominal_frames
        self._length = sum(len(part) for part in parts)
        # Minibatch k of n is at (k + 1/2) / n of an epoch: every split is spread over the whole epoch.
        places = [((k + 0.5) / len(part), number, k) for number, part in enumerate(parts) for k in range(len(part))]
        self._turns = [(number, k) for _, number, k in sorted(places)] if len(parts) > 1 else []

    def __len__(self) -> int:
        return self._length

    def _find(self, index: int) -> tuple[Minibatches, int]:
        number, k = self._turns[index] if self._turns else (0, index)
        return self._parts[number], k

    def frames(self, epoch: int, index: int) -> int:
        """Return the frames of a minibatch without loading it."""
        part, k = self._find(index)
        return part.frames(epoch, k)

    def load(self, epoch: int, index: int) -> Batch:
        """Read a minibatch."""
        part, k = self._find(index)
        return part.load(epoch, k)

    def utterances(self, epoch: int, index: int) -> list[str]:
        """Name the utterances of a minibatch, one for each item."""
        part, k = self._find(index)
        return part.utterances(epoch, k)


def read_frames(
    inputs: Mapping[str, CombinedInputs],
    targets: Mapping[str, ArrayStore],
    batch: int,
    seed: int,
    context: tuple[int, int],
) -> BatchReader:
    """Return minibatches of ``batch`` single frames with context."""
    left, right = context
    return BatchReader(
        [FrameMinibatches(inputs[split], targets[split], batch, left=left, right=right, seed=seed) for split in inputs],
        batch,
    )


def read_chunks(
    inputs: Mapping[str, CombinedInputs], targets: Mapping[str, ArrayStore], batch: int, seed: int,
    context: tuple[int, int], length: int,
) -> BatchReader:  # fmt: skip
    """Return minibatches of chunks of ``length`` frames, about ``batch`` frames in all."""
    (left, right), size = context, max(1, round(batch / length))
    parts = [
        ChunkMinibatches(inputs[split], targets[split], size, length=length, left=left, right=right, seed=seed)
        for split in inputs
    ]
    return _averaged(parts, sum(store.num_rows for store in targets.values()))


def read_utterances(
    inputs: Mapping[str, CombinedInputs], labels: Labels, usable: Mapping[str, Sequence[str]], batch: int, seed: int
) -> BatchReader:
    """Return minibatches of whole utterances, about ``batch`` frames on average."""
    lengths = [len(inputs[split][name]) for split in inputs for name in usable[split]]
    size = max(1, round(batch * len(lengths) / max(1, sum(lengths))))
    parts = [
        UtteranceMinibatches(inputs[split], labels[split].__getitem__, size, seed=seed, utterances=usable[split])
        for split in inputs
    ]
    return _averaged(parts, sum(lengths))


def _averaged(parts: Sequence[Minibatches], frames: int) -> BatchReader:
    """Use the mean size as nominal size: nominal frames times minibatches are the frames of an epoch."""
    return BatchReader(parts, max(1, round(frames / sum(len(part) for part in parts))))


def with_context(inputs: Tensor, lengths: Tensor, left: int, right: int) -> Tensor:
    """Add context around utterances (B, T, F) of ``lengths`` (B) by repeating their first and last frames."""
    times = torch.arange(-left, inputs.shape[1] + right)
    times = to_device(torch.minimum(times.clamp(min=0)[None], (lengths - 1)[:, None]), inputs.device)
    return inputs.gather(1, times[:, :, None].expand(-1, -1, inputs.shape[2]))

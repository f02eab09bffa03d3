"""Minibatches of several splits as one epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from roundelay.speech.features.minibatches import Batch
from roundelay.tasks.batch_reader import BatchReader, with_context


class Part:
    """Minibatches that tell their split and index."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def frames(self, epoch: int, index: int) -> int:
        return 100 * epoch + index

    def load(self, epoch: int, index: int) -> Batch:
        return Batch(torch.tensor([epoch]), torch.tensor([index]), 1)

    def utterances(self, epoch: int, index: int) -> list[str]:
        del epoch
        return [f"{self.name}{index}"]


def test_splits_are_interleaved_evenly() -> None:
    reader = BatchReader([Part("a", 4), Part("b", 2)], 32)
    assert len(reader) == 6
    assert [reader.utterances(0, i)[0] for i in range(6)] == ["a0", "b0", "a1", "a2", "b1", "a3"]
    assert reader.frames(2, 4) == 201
    assert reader.load(3, 5).targets.tolist() == [3]


def test_one_split_keeps_its_order() -> None:
    reader = BatchReader([Part("a", 3)], 32)
    assert [reader.utterances(0, i)[0] for i in range(3)] == ["a0", "a1", "a2"]


def test_context_repeats_the_ends_of_each_utterance() -> None:
    inputs = torch.tensor([[1.0, 2, 3], [4, 5, 0]])[:, :, None]
    found: Tensor = with_context(inputs, torch.tensor([3, 2]), 1, 2)
    assert found[:, :, 0].tolist() == [[1, 1, 2, 3, 3, 3], [4, 4, 5, 5, 5, 5]]

"""Operations in chunks give the bits of the operations on whole vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roundelay.vectors import chunks

LENGTHS = [1, 1000, 3 * chunks.CHUNK_BYTES // 4 + 17]


def vectors(count: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(length, generator=generator) for _ in range(count)]


def test_chunks_cover_a_vector_once() -> None:
    x = torch.zeros(LENGTHS[-1])
    parts = list(chunks.chunks(x))
    assert len(parts) == 4
    for part in parts:
        x[part] += 1
    assert bool((x == 1).all())
    assert (
        list(chunks.chunks(torch.zeros(9))) == list(chunks.chunks(torch.zeros(10**9, device="meta"))) == [slice(None)]
    )


@pytest.mark.parametrize("length", LENGTHS)
def test_moving_towards(length: int) -> None:
    weights, mine, theirs, added = vectors(4, length)
    expected = (theirs - mine) * 0.3
    moved = weights + expected
    chunks.move_towards(weights, mine, theirs, 0.3, added)
    assert torch.equal(added, expected)
    assert torch.equal(weights, moved)
    expected = weights + (theirs - weights) * 0.3
    chunks.move_towards(weights, weights, theirs, 0.3, added)
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_adding_a_change(length: int) -> None:
    weights, now, before = vectors(3, length)
    copies = [weights.clone(), now.clone(), before.clone()]
    expected = weights + (now - before)
    chunks.add_change(weights, now, before)
    assert torch.equal(weights, expected)
    assert torch.equal(before, now)
    chunks.take_over(*copies)
    assert all(torch.equal(each, expected) for each in copies)


@pytest.mark.parametrize("length", LENGTHS)
def test_combining(length: int) -> None:
    weights, one, other = vectors(3, length)
    expected = (weights * 0.5).add_(one, alpha=0.25).add_(other, alpha=0.25)
    chunks.combine(weights, 0.5, [(0.25, one), (0.25, other)])
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_copying_and_comparing(length: int) -> None:
    source, one, other = vectors(3, length)
    chunks.copy_to(source, one, other)
    assert chunks.same_bits(source, one)
    assert chunks.same_bits(source, other)
    other[-1] += 1
    assert not chunks.same_bits(source, other)
    assert chunks.same_bits(source[::2], one[::2])

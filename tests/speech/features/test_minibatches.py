"""Minibatches: every frame once, the right neighbours, the same for the same (seed, epoch, index)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.errors import DataError, SettingsError
from roundelay.speech.features import array_store
from roundelay.speech.features.array_store import ArrayStore, write_store
from roundelay.speech.features.mel_features import splice
from roundelay.speech.features.minibatches import (
    IGNORED,
    Batch,
    ChunkMinibatches,
    FrameMinibatches,
    Minibatches,
    Prefetch,
    UtteranceMinibatches,
)

DIM = 4


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ArrayStore, ArrayStore]:
    """Twenty utterances over three shards; a frame's first feature is its number, which is its target too."""
    monkeypatch.setattr(array_store, "UTTERANCES_PER_SHARD", 7)
    random = np.random.default_rng(1)
    features, targets, total = {}, {}, 0
    for i in range(20):
        length = int(random.integers(3, 40))
        array = random.standard_normal((length, DIM)).astype(np.float32)
        array[:, 0] = targets[f"u{i:02d}"] = np.arange(total, total + length)
        features[f"u{i:02d}"] = array
        total += length
    del targets["u05"]  # could not be aligned
    return (
        write_store(tmp_path / "features", features.items(), dim=DIM),
        write_store(tmp_path / "targets", reversed(targets.items()), dim=0, dtype="int32"),
    )


def all_of(minibatches: Minibatches, epoch: int = 0) -> list[Batch]:
    return [minibatches.load(epoch, index) for index in range(len(minibatches))]


def make(kind: str, data: tuple[ArrayStore, ArrayStore], seed: int = 0) -> Minibatches:
    features, targets = data
    if kind == "frames":
        return FrameMinibatches(features, targets, 16, left=2, right=3, seed=seed, pool_frames=100)
    if kind == "chunks":
        return ChunkMinibatches(features, targets, 4, length=6, left=2, right=3, seed=seed)
    return UtteranceMinibatches(features, lambda name: [int(name[1:])] * 3, 4, seed=seed)


@pytest.mark.parametrize("kind", ["frames", "chunks", "utterances"])
def test_seeded_and_random_access(kind: str, data: tuple[ArrayStore, ArrayStore]) -> None:
    ours, again, other = make(kind, data), make(kind, data), make(kind, data, seed=1)
    order = list(range(len(ours)))
    backwards = {index: again.load(3, index) for index in reversed(order)}
    for index in order:
        batch = ours.load(3, index)
        assert torch.equal(batch.inputs, backwards[index].inputs)
        assert torch.equal(batch.targets, backwards[index].targets)
        assert batch.frames == ours.frames(3, index) == backwards[index].frames
    assert any(not torch.equal(ours.load(4, i).targets, backwards[i].targets) for i in order)
    assert any(not torch.equal(other.load(3, i).targets, backwards[i].targets) for i in order)
    for index in (-1, len(ours)):
        with pytest.raises(IndexError):
            ours.load(0, index)


def test_every_frame_once_with_its_neighbours(data: tuple[ArrayStore, ArrayStore]) -> None:
    features, targets = data
    minibatches = make("frames", data)
    batches = all_of(minibatches)
    seen = torch.cat([batch.targets for batch in batches])
    assert sorted(seen.tolist()) == sorted(int(t) for array in targets.values() for t in array)
    assert [batch.frames for batch in batches[:-1]] == [16] * (len(batches) - 1)
    spliced = np.concatenate([splice(features[name], 2, 3) for name in features])
    inputs = torch.cat([batch.inputs for batch in batches])
    assert inputs.dtype == torch.float32
    assert np.array_equal(inputs.numpy(), spliced[seen.numpy()])


def test_frames_mix_utterances(data: tuple[ArrayStore, ArrayStore]) -> None:
    features, targets = data
    owner = np.concatenate([np.full(len(features[name]), i) for i, name in enumerate(features)])
    for batch in all_of(FrameMinibatches(features, targets, 32, left=0, right=0))[:-1]:
        assert len(np.unique(owner[batch.targets.numpy()])) > 8


def test_pools_bound_what_is_open(data: tuple[ArrayStore, ArrayStore]) -> None:
    features, targets = data
    minibatches = FrameMinibatches(features, targets, 10, left=0, right=0, pool_frames=60)
    owner = np.concatenate([np.full(len(features[name]), i) for i, name in enumerate(features)])
    first = np.concatenate([minibatches.load(0, index).targets.numpy() for index in range(3)])
    assert len(np.unique(owner[first])) < 10


def test_no_epoch_ends_with_a_few_utterances(data: tuple[ArrayStore, ArrayStore]) -> None:
    """A small rest belongs to the pool before it; batch norm would remember it when the model is evaluated."""
    features, targets = data
    total = sum(features.lengths[features.index(name)] for name in targets.ids)
    minibatches = FrameMinibatches(features, targets, 8, left=0, right=0, pool_frames=total // 2 - 10)
    for epoch in range(10):
        named = {name for k in (-2, -1) for name in minibatches.utterances(epoch, len(minibatches) + k)}
        assert len(named) > 4
        alone = {name for index in range(len(minibatches)) for name in minibatches.utterances(epoch, index)}
        assert alone == set(targets.ids)


def test_chunks_cover_each_utterance(data: tuple[ArrayStore, ArrayStore]) -> None:
    features, targets = data
    seen = []
    frames = np.concatenate([features[name] for name in features])
    owner = np.concatenate([np.full(len(features[name]), i) for i, name in enumerate(features)])
    for batch in all_of(make("chunks", data)):
        assert batch.lengths is not None
        assert batch.inputs.shape[1:] == (2 + 6 + 3, DIM)
        assert batch.frames == int(batch.lengths.sum()) == int((batch.targets != IGNORED).sum())
        for chunk, target, length in zip(batch.inputs, batch.targets, batch.lengths, strict=True):
            valid = target[:length].tolist()
            assert valid == list(range(valid[0], valid[0] + len(valid)))
            seen += valid
            wanted = np.arange(valid[0] - 2, valid[0] + 6 + 3)
            bounds = np.flatnonzero(owner == owner[valid[0]])
            assert np.array_equal(chunk.numpy(), frames[wanted.clip(bounds[0], bounds[-1])])
    assert sorted(seen) == sorted(int(t) for array in targets.values() for t in array)


def test_utterances_are_whole_and_alike(data: tuple[ArrayStore, ArrayStore]) -> None:
    features, _ = data
    names, padding, total = [], 0, 0
    for batch in all_of(make("utterances", data)):
        assert batch.lengths is not None
        assert batch.target_lengths is not None
        for row, length, labels in zip(batch.inputs, batch.lengths.tolist(), batch.targets.tolist(), strict=True):
            name = f"u{labels[0]:02d}"
            names.append(name)
            assert np.array_equal(row[:length].numpy(), features[name])
            assert not row[length:].any()
        assert batch.target_lengths.tolist() == [3] * len(batch.inputs)
        padding += batch.inputs.shape[0] * batch.inputs.shape[1] - batch.frames
        total += batch.frames
    assert sorted(names) == list(features)
    assert padding < 0.3 * total


def test_companions_change(data: tuple[ArrayStore, ArrayStore]) -> None:
    minibatches = make("utterances", data)
    groups = [{frozenset(b.targets[:, 0].tolist()) for b in all_of(minibatches, epoch)} for epoch in (0, 1)]
    assert groups[0] != groups[1]


def test_what_does_not_fit_is_named(data: tuple[ArrayStore, ArrayStore], tmp_path: Path) -> None:
    features, targets = data
    short = write_store(tmp_path / "short", [("u00", np.zeros(1))], dim=0, dtype="int32")
    with pytest.raises(DataError, match=r"u00 has \d+ frames and 1 targets"):
        FrameMinibatches(features, short)
    other = write_store(tmp_path / "other", [("x", np.zeros(1))], dim=0, dtype="int32")
    with pytest.raises(DataError, match="none of its utterances has targets"):
        ChunkMinibatches(features, other)
    with pytest.raises(SettingsError, match="size must be at least 1, not 0"):
        FrameMinibatches(features, targets, 0)
    with pytest.raises(SettingsError, match="length must be at least 1, not 0"):
        ChunkMinibatches(features, targets, length=0)


def test_prefetch_gives_all_in_order(data: tuple[ArrayStore, ArrayStore]) -> None:
    minibatches = make("frames", data)
    which = [(epoch, index) for epoch in range(2) for index in range(1, len(minibatches), 2)]
    with Prefetch(minibatches, which) as ahead:
        loaded = list(ahead)
    assert len(loaded) == len(which)
    for (epoch, index), batch in zip(which, loaded, strict=True):
        assert torch.equal(batch.targets, minibatches.load(epoch, index).targets)


def test_prefetch_passes_errors_on_and_stops(data: tuple[ArrayStore, ArrayStore]) -> None:
    minibatches = make("frames", data)
    ahead = Prefetch(minibatches, [(0, 0), (0, 10_000)])
    stream = iter(ahead)
    next(stream)
    with pytest.raises(IndexError, match="minibatch 10000"):
        next(stream)
    with Prefetch(minibatches, ((0, 0) for _ in range(1000))) as endless:
        next(iter(endless))
    assert not endless._thread.is_alive()

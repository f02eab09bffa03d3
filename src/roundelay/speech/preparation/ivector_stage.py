"""The stage that makes speaker vectors (i-vectors), one per utterance.

They need no transcripts.  A speaker's vector uses all utterances of the speaker in the split, so this is a batch method
too; an utterance's vector uses the utterance only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from roundelay.config import Seed, check_bounds, limits
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import read_json, write_json
from roundelay.speech.features.array_store import ArrayStore, make_empty_folder, write_store
from roundelay.speech.features.extraction import MOMENTS, Copy
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.gmm.front_end import FrontEnd, Normaliser
from roundelay.speech.gmm.gaussian_mixtures import Gmm
from roundelay.speech.gmm.ivector import BaumWelch, IvectorModel, train_ivectors, train_ubm
from roundelay.speech.preparation.cached_stages import files_under
from roundelay.speech.worker_pool import WorkerPool

Progress = Callable[[str, int, int], None]
Array = npt.NDArray[Any]
IVECTORS = "ivectors"
_UBM_FRAMES = 60_000  # that train the background mixture
_FRAMES_A_GAUSSIAN = 100
_MOST_UNITS = 4000  # speakers or utterances that train the directions: their statistics are in memory
_CHUNK = 32
_FRAMES_PER_JOB = 200_000  # starting a process costs seconds
_PER = ("speaker", "utterance")


@dataclass(frozen=True)
class IvectorSettings:
    """Settings of speaker vectors."""

    size: Annotated[int, limits(ge=1, largest=10_000)] = 100
    per: Literal["speaker", "utterance"] = "speaker"
    """Whether all utterances of a speaker share one vector, or each utterance has its own."""
    num_gaussians: Annotated[int, limits(ge=1, largest=100_000)] = 256
    """Maximum number of Gaussians of the background mixture; at least a hundred frames per Gaussian are needed."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self, "i-vectors: ")
        if self.per not in _PER:
            raise SettingsError(f"i-vectors: unknown unit {suggest(self.per, _PER)}")


@dataclass(frozen=True)
class _CepstraMaker:
    """Turn stored features into cepstra with deltas that still differ by speaker."""

    front_end: FrontEnd
    normaliser: Normaliser  # one for all speakers

    def __call__(self, features: Array) -> Array:
        return self.front_end(features, self.normaliser)


class IvectorMaker:
    """Train on the training splits of a folder, and write the vectors of all splits."""

    def __init__(
        self, folder: Path, items: Mapping[str, list[Copy]], settings: IvectorSettings, features: FeatureSettings,
        jobs: int, progress: Progress,
    ) -> None:  # fmt: skip
        self._folder, self._items, self._settings, self._progress = folder, items, settings, progress
        self._sources = {
            split: UnnormalisedFeatures(folder / "features" / split, copies) for split, copies in items.items()
        }
        self._units = {
            split: {c.name: c.speaker if settings.per == "speaker" else c.name for c in copies}
            for split, copies in items.items()
        }
        self._front_end = FrontEnd(features.kind, min(FrontEnd().num_cepstra, features.dim), variance=True)
        frames = sum(source.store.num_rows for source in self._sources.values())
        self._jobs = max(1, min(jobs, frames // _FRAMES_PER_JOB))
        self._steps = 1 + sum(map(len, items.values()))

    def run(self, train_splits: Sequence[str]) -> Iterable[Path]:
        """Train, and write a store with one row per utterance for each split."""
        folder = make_empty_folder(self._folder / IVECTORS)
        frames, hearing = self._sample(train_splits)
        wanted = min(self._settings.num_gaussians, max(1, len(frames) // _FRAMES_A_GAUSSIAN))
        with WorkerPool(self._jobs) as workers:
            ubm = train_ubm(frames, wanted, seed=self._settings.seed)
            shared = (hearing, ubm)
            rows = self._training(workers, shared, train_splits)
            model = train_ivectors(ubm, rows, self._settings.size, seed=self._settings.seed)
            self._progress(IVECTORS, 1, self._steps)
            done = 1
            for split in self._items:
                self._write(split, model, self._statistics(workers, shared, split, set(self._items_of(split))))
                done += len(self._items[split])
                self._progress(IVECTORS, done, self._steps)
        model.save(folder / "model.safetensors")
        whole = {"mean": hearing.normaliser.mean.tolist(), "scale": hearing.normaliser.scale.tolist()}
        write_json(folder / "normaliser.json", whole | self._front_end.describe())
        return files_under(folder)

    def _items_of(self, split: str) -> list[str]:
        return [copy.name for copy in self._items[split]]

    def _sample(self, train_splits: Sequence[str]) -> tuple[Array, _CepstraMaker]:
        """Sample frames of all training splits, and compute their normaliser."""
        names = [(split, name) for split in train_splits for name in self._items_of(split)]
        chosen, rows = [], 0
        for split, name in sorted(names, key=lambda pair: _draw(pair[1])):
            if rows >= 4 * _UBM_FRAMES:
                break
            chosen.append(self._sources[split][name])
            rows += len(chosen[-1])
        if not rows:
            raise DataError(f"{self._folder}: no training utterance has a frame of features")
        cepstra = [self._front_end.cepstra(x).astype(np.float64) for x in chosen if len(x)]
        squares = sum((x**2).sum(0) for x in cepstra)
        normaliser = Normaliser.from_moments(rows, sum(x.sum(0) for x in cepstra), squares)
        hearing = _CepstraMaker(self._front_end, normaliser)
        every = -(-rows // _UBM_FRAMES)
        return np.concatenate([hearing(x)[::every] for x in chosen if len(x)]), hearing

    def _training(
        self, workers: WorkerPool, shared: tuple[_CepstraMaker, Gmm], train_splits: Sequence[str]
    ) -> list[BaumWelch]:
        """Collect the statistics of training speakers or utterances, of at most ``_MOST_UNITS``."""
        units = sorted({unit for split in train_splits for unit in self._units[split].values()}, key=_draw)
        chosen = set(units[:_MOST_UNITS])
        sums: dict[str, BaumWelch] = {}
        for split in train_splits:
            unit_of = self._units[split]
            wanted = {name for name in unit_of if unit_of[name] in chosen}
            for name, found in self._statistics(workers, shared, split, wanted):
                sums[unit_of[name]] = sums[unit_of[name]] + found if unit_of[name] in sums else found
        return list(sums.values())

    def _statistics(
        self, workers: WorkerPool, shared: tuple[_CepstraMaker, Gmm], split: str, wanted: set[str]
    ) -> Iterator[tuple[str, BaumWelch]]:
        source = self._sources[split]
        names = [name for name in self._items_of(split) if name in wanted and source.store.length(name)]
        chunks = ([(n, source[n]) for n in names[i : i + _CHUNK]] for i in range(0, len(names), _CHUNK))
        for part in workers.map(_collect_chunk, shared, chunks):
            yield from part

    def _write(self, split: str, model: IvectorModel, statistics: Iterator[tuple[str, BaumWelch]]) -> None:
        """Write each utterance's vector, or its speaker's; without frames it is zero, the prior's mean."""
        unit_of = self._units[split]
        if self._settings.per == "utterance":
            found = {name: model.posterior(sums)[0] for name, sums in statistics}
        else:
            speakers: dict[str, BaumWelch] = {}
            for name, sums in statistics:
                speakers[unit_of[name]] = speakers[unit_of[name]] + sums if unit_of[name] in speakers else sums
            found = {speaker: model.posterior(sums)[0] for speaker, sums in speakers.items()}
        silent = np.zeros(model.size)
        rows = ((n, found.get(unit_of[n], silent)[None]) for n in self._sources[split].store)
        write_store(self._folder / IVECTORS / split, rows, dim=model.size)


class UnnormalisedFeatures:
    """The features of a split before they were normalised by speaker."""

    def __init__(self, folder: Path, copies: Sequence[Copy]) -> None:
        self.store = ArrayStore(folder, private=True)
        path = folder / MOMENTS
        moments = read_json(path) if path.is_file() else {}
        self._moments = {speaker: [np.float32(row) for row in rows] for speaker, rows in moments.items()}
        self._speakers = {copy.name: copy.speaker for copy in copies}

    def __getitem__(self, name: str) -> Array:
        features = self.store[name]
        if self._speakers[name] not in self._moments:
            return features
        mean, deviation = self._moments[self._speakers[name]]
        return np.asarray(features * deviation + mean)


def _collect_chunk(
    shared: tuple[_CepstraMaker, Gmm], chunk: Sequence[tuple[str, Array]]
) -> list[tuple[str, BaumWelch]]:
    hearing, ubm = shared
    return [(name, BaumWelch.collect(ubm, hearing(features))) for name, features in chunk]


def _draw(name: str) -> bytes:
    """Return a sort key that gives a random but reproducible order."""
    return hashlib.sha256(name.encode()).digest()

"""Extract features from audio, normalise and store them, in several threads.

Threads are enough: reading, resampling and the transforms release Python's lock.  Every shard is one task with a fixed
set of utterances, so the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roundelay.corpora.data_directory import Utterance
from roundelay.errors import DataError
from roundelay.files import write_json
from roundelay.formats import audio_files
from roundelay.formats.kaldi_archives import read_matrix_at
from roundelay.speech.features.array_store import (
    UTTERANCES_PER_SHARD,
    ArrayShard,
    ArrayStore,
    make_empty_folder,
    rewrite_shard,
    write_index,
    write_shard,
)
from roundelay.speech.features.mel_features import FeatureSettings, extract
from roundelay.speech.features.normalisation import Moments, Scope, moments_group, pool_moments
from roundelay.speech.features.speed_perturbation import change_speed, copy_name

Array = npt.NDArray[np.float32]

CLIPPED_SHARE = 1e-3
"""An utterance is clipped if at least this share of its samples is at full scale."""
SILENT_PEAK = 1e-3
"""An utterance is silent if no sample is larger than this."""
SOUNDS = "sounds.json"
"""File beside a split's features: total seconds, and the utterances that are silent or clipped."""
MOMENTS = "moments.json"
"""File beside features normalised by speaker: mean and deviation of each speaker."""
_FULL = 0.999


@dataclass(frozen=True)
class Sound:
    """Length, peak and clipping of an utterance's samples."""

    seconds: float
    peak: float
    clipped: float
    """The share of samples at full scale."""

    @staticmethod
    def from_samples(samples: Array, rate: int) -> Sound:
        """Measure samples."""
        size = np.abs(samples)
        peak = float(size.max(initial=0.0))
        clipped = float(np.mean(size >= _FULL)) if peak >= _FULL else 0.0
        return Sound(len(samples) / rate, peak, clipped)

    @property
    def complaint(self) -> str | None:
        """Return ``silent`` or ``clipped``, or None."""
        if self.peak < SILENT_PEAK:
            return "silent"
        return "clipped" if self.clipped >= CLIPPED_SHARE else None


@dataclass(frozen=True, slots=True)
class Copy:
    """An utterance at a speed."""

    utterance: Utterance
    speed: float = 1.0

    @property
    def name(self) -> str:
        """Name the copy."""
        return copy_name(self.utterance.id, self.speed)

    @property
    def speaker(self) -> str:
        """Return the speaker's name; another speed counts as another speaker."""
        return copy_name(self.utterance.speaker, self.speed)


def list_copies(utterances: Sequence[Utterance], speeds: Sequence[float]) -> list[Copy]:
    """List the utterances at their own speed, then at the other speeds."""
    return [Copy(utterance, factor) for factor in (1.0, *speeds) for utterance in utterances]


def read_samples(utterance: Utterance, rate: int) -> Array:
    """Read an utterance's samples; errors name the utterance."""
    try:
        samples, _ = audio_files.read(
            utterance.audio, rate=rate, channel=utterance.channel, begin=utterance.begin, end=utterance.end
        )
    except DataError as error:
        raise DataError(f"{error} (utterance {utterance.id})") from error
    return samples


@dataclass
class _Part:
    """A shard, and the small statistics collected while it was written."""

    shard: ArrayShard
    moments: dict[str, Moments]
    complaints: dict[str, str]
    seconds: float


class Extraction:
    """Write the features of one split: extracted, or read from archives if ``given`` (utterance to position)."""

    def __init__(
        self, folder: Path, items: Sequence[Copy], settings: FeatureSettings, scope: Scope,
        given: Mapping[str, tuple[Path, int]] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._items, self._settings, self._scope = folder, items, settings, scope
        self._given = given

    def run(self, jobs: int = 1, progress: Callable[[int], None] = lambda _: None) -> ArrayStore:
        """Extract, normalise, and write the index last; ``progress`` gets the number of finished utterances."""
        folder = make_empty_folder(self._folder)
        numbers = range(max(1, -(-len(self._items) // UTTERANCES_PER_SHARD)))
        done = itertools.count(1)

        def tell() -> None:
            progress(next(done))

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(jobs) as pool:
                try:
                    parts = list(pool.map(lambda number: self._extract(folder, number, tell), numbers))
                    moments = pool_moments(item for part in parts for item in part.moments.items())
                    shards = list(pool.map(self._normaliser(folder, moments), numbers, parts))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        finally:
            torch.set_num_threads(threads)
        complaints = {name: reason for part in parts for name, reason in part.complaints.items()}
        write_json(folder / SOUNDS, {"seconds": sum(part.seconds for part in parts), "complaints": complaints})
        if self._scope == "speaker":
            rows = {name: [found.mean.tolist(), found.deviation.tolist()] for name, found in moments.items()}
            write_json(folder / MOMENTS, rows)
        write_index(folder, shards, self._settings.dim, "float32")
        return ArrayStore(folder)

    def _items_of(self, number: int) -> Sequence[Copy]:
        return self._items[number * UTTERANCES_PER_SHARD : (number + 1) * UTTERANCES_PER_SHARD]

    def _extract(self, folder: Path, number: int, tell: Callable[[], None]) -> _Part:
        part = _Part(ArrayShard([], [], ""), {}, {}, 0.0)

        def arrays() -> Iterator[tuple[str, npt.NDArray[Any]]]:
            for item in self._items_of(number):
                features = self._compute(part, item) if self._given is None else self._take(item.name, self._given)
                yield item.name, self._add_moments(part, item, features)
                tell()

        part.shard = write_shard(folder, number, "float32", arrays())
        return part

    def _compute(self, part: _Part, item: Copy) -> Array:
        """Compute an utterance's features, and record if it is silent or clipped."""
        rate = self._settings.rate
        samples = read_samples(item.utterance, rate)
        sound = Sound.from_samples(samples, rate)
        if sound.complaint:
            part.complaints[item.name] = sound.complaint
        part.seconds += sound.seconds
        return extract(change_speed(samples, item.speed, rate), self._settings)

    def _take(self, name: str, given: Mapping[str, tuple[Path, int]]) -> Array:
        """Read an utterance's features from an archive."""
        if name not in given:
            raise DataError(f"{self._folder.name}: feats.scp has no features of utterance {name}")
        archive, position = given[name]
        features = read_matrix_at(archive, position)
        if features.shape[1] != self._settings.dim:
            wanted = "--bins" if self._settings.kind == "fbank" else "13 cepstra"
            raise DataError(
                f"{archive}: utterance {name} has {features.shape[1]} features per frame, not {self._settings.dim}; "
                f"check --features and {wanted}"
            )
        return np.asarray(features, np.float32)

    def _add_moments(self, part: _Part, item: Copy, features: Array) -> Array:
        """Add an utterance to its group's moments, or normalise it now if the scope is the utterance."""
        if self._scope == "none":
            return features
        moments = Moments.from_frames(features)
        if self._scope == "utterance":
            return moments.apply(features)
        name = moments_group(self._scope, item.speaker)
        part.moments[name] = part.moments[name] + moments if name in part.moments else moments
        return features

    def _normaliser(self, folder: Path, moments: Mapping[str, Moments]) -> Callable[[int, _Part], ArrayShard]:
        """Return a function that normalises a shard in place by the moments of all groups."""

        def normalise(number: int, part: _Part) -> ArrayShard:
            if not part.moments:
                return part.shard
            groups = {item.name: moments[moments_group(self._scope, item.speaker)] for item in self._items_of(number)}
            return rewrite_shard(folder, number, part.shard, self._settings.dim, lambda name, x: groups[name].apply(x))

        return normalise

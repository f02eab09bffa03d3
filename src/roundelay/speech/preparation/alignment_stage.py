"""The stages that train an HMM-GMM and align with it, or import alignments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError
from roundelay.files import write_json
from roundelay.speech.features.array_store import ArrayStore, StoreWriter, make_empty_folder
from roundelay.speech.features.extraction import Copy
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.features.speed_perturbation import copy_name
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.gmm.gmm_training import GmmSettings, train_gmm
from roundelay.speech.gmm.hmm_gmm import HmmGmm
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation import alignment_import
from roundelay.speech.preparation.cached_stages import files_under

Progress = Callable[[str, int, int], None]
FAILURES = "failures.json"
_TREE = "tree.safetensors"
_FRAMES_PER_JOB = 60_000


class Aligner:
    """Train and align in a folder of prepared data that has features and lexicon."""

    def __init__(
        self, folder: Path, lexicon: Lexicon, items: Mapping[str, list[Copy]], clean: Mapping[str, Mapping[str, str]],
        jobs: int, progress: Progress,
    ) -> None:  # fmt: skip
        self._folder, self._lexicon, self._items, self._clean = folder, lexicon, items, clean
        self._jobs, self._progress = jobs, progress

    def _features(self, split: str) -> ArrayStore:
        return ArrayStore(self._folder / "features" / split, private=True)  # torch warns about read-only arrays

    def _originals(self, split: str) -> dict[str, list[str]]:
        """Map each utterance that is aligned to its noisy copies, which share its alignment."""
        noisy = self._clean[split]
        names = {copy.name for copy in self._items[split]}
        result: dict[str, list[str]] = {copy.name: [] for copy in self._items[split]}
        for copy in self._items[split]:
            original = copy_name(noisy.get(copy.utterance.id, ""), copy.speed)
            if original in names and original != copy.name:
                result[original].append(copy.name)
                del result[copy.name]
        return result

    def train(
        self, train_splits: Sequence[str], settings: GmmSettings, features: FeatureSettings, hours: float
    ) -> Iterable[Path]:
        """Train the HMM-GMM on at most ``hours`` of clean originals at their own speed."""
        stores: dict[str, ArrayStore] = {}
        transcripts: dict[str, tuple[str, ...]] = {}
        speakers: dict[str, str] = {}
        for split in train_splits:
            store, originals = self._features(split), self._originals(split)
            for copy in self._items[split]:
                if copy.speed == 1.0 and copy.name in originals and store.length(copy.name):
                    stores[copy.name] = store
                    transcripts[copy.name], speakers[copy.name] = copy.utterance.words, copy.speaker
        chosen = StoredUtterances(_some(stores, round(hours * 3600 / features.frame_shift_seconds)))
        if not chosen:
            raise DataError(f"{self._folder}: no training utterance has a frame of features")
        model = train_gmm(
            chosen, {name: transcripts[name] for name in chosen}, {name: speakers[name] for name in chosen},
            self._lexicon, replace(settings, input=features.kind), progress=self._progress, jobs=self._jobs,
        )  # fmt: skip
        model.save(make_empty_folder(self._folder / "hmm"))
        model.tree.save(self._folder / _TREE)
        return [*files_under(self._folder / "hmm"), self._folder / _TREE]

    def align(self) -> Iterable[Path]:
        """Align every utterance with the trained model."""
        model = HmmGmm.load(self._folder / "hmm")

        def paths(split: str) -> Iterator[tuple[str, Alignment | str]]:
            features, originals = self._features(split), self._originals(split)
            items = {c.name: c for c in self._items[split] if c.name in originals}
            spoken = StoredUtterances({name: features for name in items if features.length(name)})
            transcripts = {name: items[name].utterance.words for name in spoken}
            speakers = {name: items[name].speaker for name in spoken}
            yield from ((name, "no frames: shorter than one") for name in items if name not in spoken)
            if spoken:
                yield from model.align_each(spoken, transcripts, speakers, spoken.jobs(self._jobs))

        return self._write(paths)

    def write_monophone_tree(self) -> Iterable[Path]:
        """Write the monophone tree of imported alignments."""
        Tree.monophone(len(self._lexicon.phones)).save(self._folder / _TREE)
        return [self._folder / _TREE]

    def import_alignments(self, path: Path, settings: FeatureSettings) -> Iterable[Path]:
        """Import alignments from a file or folder."""
        importer = alignment_import.Importer(self._lexicon, path)
        half = settings.frame_length_seconds if settings.snip_edges else settings.frame_shift_seconds
        grid = alignment_import.Grid(settings.frame_shift_seconds, half / 2)

        def paths(split: str) -> Iterator[tuple[str, Alignment | str]]:
            features, originals = self._features(split), self._originals(split)
            items = {c.name: c.utterance.words for c in self._items[split] if c.name in originals}
            lengths = {name: features.length(name) for name in items}
            yield from alignment_import.read_all(path, importer, items, lengths, grid)

        return self._write(paths)

    def _write(self, paths: Callable[[str], Iterator[tuple[str, Alignment | str]]]) -> Iterable[Path]:
        """Write the alignments, utterance by utterance, and the reasons why others failed."""
        total, done, aligned = sum(len(items) for items in self._items.values()), 0, 0
        for split in self._items:
            folder = make_empty_folder(self._folder / "alignments" / split)
            originals, features = self._originals(split), self._features(split)
            words = {copy.name: copy.utterance.words for copy in self._items[split]}
            failures: dict[str, str] = {}
            with _Writer(folder, self._lexicon) as writer:
                for utterance, found in paths(split):
                    for name in (utterance, *originals[utterance]):
                        done += 1
                        self._progress("alignment", done, total)
                        reason = found if isinstance(found, str) else _misfit(found, features.length(name))
                        if isinstance(found, str) or reason:
                            failures[name] = reason or ""
                        else:
                            writer.add(name, words[name], found)
                            aligned += 1
            write_json(folder / FAILURES, failures)
        if not aligned:
            name, reason = next(iter(failures.items()), ("no utterance", "there is none"))
            raise DataError(f"{self._folder}: nothing could be aligned; {name}: {reason}")
        return files_under(*(self._folder / "alignments" / split for split in self._items))


class StoredUtterances(Mapping[str, npt.NDArray[np.float32]]):
    """Some utterances of some stores, read when needed and not kept in memory."""

    def __init__(self, stores: Mapping[str, ArrayStore]) -> None:
        self._stores = stores

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        return self._stores[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def __contains__(self, name: object) -> bool:
        return name in self._stores

    def jobs(self, most: int) -> int:
        """Return a useful number of processes: one per ten minutes of speech, since a start takes seconds."""
        frames = sum(store.length(name) for name, store in self._stores.items())
        return max(1, min(most, frames // _FRAMES_PER_JOB))


def _some(stores: dict[str, ArrayStore], most: int) -> dict[str, ArrayStore]:
    """Keep utterances of about ``most`` frames, in the order of their names' digests: of all speakers, reproducible."""
    if sum(store.length(name) for name, store in stores.items()) <= most:
        return stores
    kept, frames = set(), 0
    for name in sorted(stores, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if frames >= most:
            break
        kept.add(name)
        frames += stores[name].length(name)
    return {name: store for name, store in stores.items() if name in kept}


def _misfit(found: Alignment, num_frames: int) -> str:
    """Return the reason why an alignment does not fit a copy, or an empty text."""
    have = len(found.senones)
    return "" if have == num_frames else f"{num_frames} frames, but its clean original has {have}"


class _Writer:
    """Write senones, phones and words of one split as three stores."""

    def __init__(self, folder: Path, lexicon: Lexicon) -> None:
        self._ids = lexicon.word_ids
        self._senones = StoreWriter(folder / "senones", dim=0, dtype="int32")
        self._phones = StoreWriter(folder / "phones", dim=3, dtype="int32")
        self._words = StoreWriter(folder / "words", dim=3, dtype="int32")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in (self._phones, self._words, self._senones):
            writer.__exit__(kind)

    def add(self, utterance: str, words: Sequence[str], path: Alignment) -> None:
        self._senones.add(utterance, path.senones)
        self._phones.add(utterance, np.stack([path.phones, path.starts[:-1], path.starts[1:]], axis=1))
        rows = [(self._ids[words[word]], begin, end) for word, (begin, end) in path.word_spans().items()]
        self._words.add(utterance, np.array(rows, np.int32).reshape(len(rows), 3))


def senone_counts(folder: Path, splits: Iterable[str]) -> npt.NDArray[np.int64]:
    """Count the frames of each senone in the alignments of some splits."""
    counts = np.zeros(Tree.load(folder / _TREE).num_senones, np.int64)
    for split in splits:
        for senones in ArrayStore(folder / "alignments" / split / "senones").values():
            counts += np.bincount(senones, minlength=len(counts))
    return counts

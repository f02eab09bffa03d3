"""The stage that adapts features to their speakers: LDA+MLLT, then fMLLR by speaker.

A training speaker's matrix is estimated from transcripts.  Any other speaker's matrix is estimated in two passes,
without transcripts: the unadapted mixtures and the decoding graph recognise words, and these are aligned.  This is a
batch method: a speaker's matrix uses all utterances of the speaker in the split.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.errors import import_extra
from roundelay.files import write_json
from roundelay.speech.features.array_store import ArrayStore, write_store
from roundelay.speech.features.extraction import Copy
from roundelay.speech.gmm.arrays import Speakers, Transcripts
from roundelay.speech.gmm.corpus_passes import Model, PassItem, UtteranceSet
from roundelay.speech.gmm.fmllr import SpeakerTransforms
from roundelay.speech.gmm.front_end import collect_normalisers
from roundelay.speech.gmm.hmm_gmm import HmmGmm
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.alignment_stage import StoredUtterances
from roundelay.speech.preparation.cached_stages import files_under
from roundelay.speech.worker_pool import WorkerPool

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
ADAPTED = "adapted"
TRANSFORMS = "transforms.safetensors"
"""File beside a split's adapted features: its speakers' matrices."""
RECOGNISED = "recognised.json"
"""File beside the adapted features of a held-out split: the words of the first pass."""
SEARCH = {"scale": 0.1, "beam": 14.0, "max_active": 5000}
"""Search of the first pass: the scale of the mixtures' log-likelihoods, and pruning."""


class Adapter:
    """Adapt the features in a folder of prepared data that has features, HMM-GMM and graphs."""

    def __init__(
        self, folder: Path, items: Mapping[str, list[Copy]], graph: str, jobs: int, progress: Progress
    ) -> None:
        self._folder, self._items, self._jobs, self._progress = folder, items, jobs, progress
        self._graph = folder / "graphs" / f"{graph}.fst"
        self._model = HmmGmm.load(folder / "hmm")
        self._words = Lexicon.read(folder / "lexicon.txt").words
        self._done = 0

    def run(self, train_splits: Collection[str]) -> Iterable[Path]:
        """Write a store of adapted features for each split; only ``train_splits`` use transcripts."""
        for split, copies in self._items.items():
            features = ArrayStore(self._folder / "features" / split, private=True)
            spoken = StoredUtterances({copy.name: features for copy in copies if features.length(copy.name)})
            speakers = {copy.name: copy.speaker for copy in copies}
            if split in train_splits:
                words: Transcripts = {copy.name: copy.utterance.words for copy in copies if copy.name in spoken}
            else:
                words = self._recognise(spoken, speakers)
            jobs = spoken.jobs(self._jobs)
            transforms = self._model.speaker_transforms(spoken, words, speakers, jobs) if words else None
            self._write(split, features, speakers, transforms)
            if split not in train_splits:
                write_json(self._folder / ADAPTED / split / RECOGNISED, words)
        return files_under(*(self._folder / ADAPTED / split for split in self._items))

    def _recognise(self, spoken: StoredUtterances, speakers: Speakers) -> Transcripts:
        """Decode utterances with the unadapted mixtures: the first pass."""
        model = self._model.unadapted
        norms, lengths = collect_normalisers(model.front_end, spoken, list(spoken), speakers)
        corpus = UtteranceSet(spoken, speakers, {name: [] for name in spoken}, norms, lengths)
        with WorkerPool(spoken.jobs(self._jobs)) as workers:
            chunks = workers.map(_recognise_chunk, (model, self._graph), corpus.chunks())
            found = dict(zip(corpus.utterances, (ids for chunk in chunks for ids in chunk), strict=True))
        return {name: [self._words[i - 1] for i in found[name]] for name in spoken}

    def _write(
        self, split: str, features: ArrayStore, speakers: Speakers, transforms: SpeakerTransforms | None
    ) -> None:
        dim, total = self._model.model.gmm.num_features, sum(map(len, self._items.values()))

        def adapted() -> Iterator[tuple[str, npt.NDArray[Any]]]:
            for name in features:
                self._done += 1
                self._progress(ADAPTED, self._done, total)
                rows = features[name]
                if transforms is None or not len(rows):
                    yield name, np.zeros((0, dim), np.float32)
                else:
                    yield name, transforms(speakers[name], rows)

        store = write_store(self._folder / ADAPTED / split, adapted(), dim=dim)
        if transforms is not None:
            transforms.save(store.folder / TRANSFORMS)


def _recognise_chunk(shared: tuple[Model, Path], chunk: list[PassItem]) -> list[list[int]]:
    """Return the word ids of the best path of each utterance."""
    model, graph = shared
    senones = np.arange(model.gmm.num_senones)
    found = []
    for item in chunk:
        scores = SEARCH["scale"] * model.gmm.score(item.frames(model.front_end), senones).T
        found.append(_search(_graph(graph, graph.stat().st_mtime_ns), np.ascontiguousarray(scores, np.float32)))
        if not found[-1]:
            _log.info("%s: the first pass recognised no word", item.utterance)
    return found


@functools.lru_cache(maxsize=1)
def _graph(path: Path, _when: int) -> Any:
    """Read a graph once per process; a changed file is read again."""
    from roundelay.speech.language.decoding_graph import read_graph

    return read_graph(path)


def _search(graph: Any, scores: npt.NDArray[np.float32]) -> list[int]:
    """Find the best path through scores (T, senones); if none is complete, use one that ends within a sentence."""
    kaldi_decoder, kaldifst = (import_extra(name, "speech") for name in ("kaldi_decoder", "kaldifst"))
    options = kaldi_decoder.FasterDecoderOptions(beam=SEARCH["beam"], max_active=int(SEARCH["max_active"]))
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    found, best = decoder.get_best_path(use_final_probs=decoder.reached_final())
    return list(kaldifst.get_linear_symbol_sequence(best)[2]) if found else []


def describe(folder: Path, splits: Iterable[str]) -> dict[str, Any]:
    """Count the speakers of each split, and those with enough speech for a matrix."""
    counts = {}
    for split in splits:
        path = folder / ADAPTED / split / TRANSFORMS
        matrices = SpeakerTransforms.load(path).matrices.values() if path.is_file() else ()
        own = sum(not np.array_equal(matrix, np.eye(*matrix.shape)) for matrix in matrices)
        counts[split] = {"speakers": len(matrices), "with_matrix": own}
    return counts

"""Passes over a corpus: align, accumulate, and collect statistics for trees and transforms.

A pass is a function of a shared value (the model) and a chunk of utterances, so it can run in any process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roundelay.errors import DataError
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.arrays import Array, Features, Speakers, Transcripts
from roundelay.speech.gmm.decision_tree import SILENCE, Tree, TreeStatistics
from roundelay.speech.gmm.fmllr import FmllrStatistics, collect_fmllr, estimate_fmllr
from roundelay.speech.gmm.front_end import FrontEnd, Normaliser, collect_normalisers
from roundelay.speech.gmm.gaussian_mixtures import Gmm, Statistics, accumulate
from roundelay.speech.gmm.hmm import GraphBuilder, Pronunciations, Spelling, UtteranceHmm
from roundelay.speech.gmm.lda_mllt import MlltStatistics, Scatter, collect_mllt
from roundelay.speech.gmm.viterbi import Transitions, search
from roundelay.speech.worker_pool import in_chunks

FRAMES_PER_CHUNK = 18_000
FRAMES_PER_SPEAKER = 60_000


@dataclass(frozen=True)
class Model:
    """The parts that scoring and aligning need."""

    front_end: FrontEnd
    tree: Tree
    gmm: Gmm
    transitions: Transitions


@dataclass(slots=True)
class PassItem:
    """One utterance as input of a pass."""

    utterance: str
    features: Array  # as stored
    normaliser: Normaliser | None
    transcript: Sequence[Pronunciations] = ()
    transform: Array | None = None
    alignment: Alignment | None = None
    speaker: str = ""

    def frames(self, front_end: FrontEnd) -> Array:
        """Compute the model's features."""
        return front_end(self.features, self.normaliser, self.transform)


@dataclass
class UtteranceSet:
    """Utterances with their transcripts, alignments and transforms so far; passes read the features when needed."""

    features: Features
    speakers: Speakers | None
    transcripts: dict[str, list[Pronunciations]]
    normalisers: dict[str, Normaliser]
    lengths: dict[str, int]
    alignments: dict[str, Alignment] = field(default_factory=dict)
    transforms: dict[str, Array] = field(default_factory=dict)  # by speaker

    @classmethod
    def open(
        cls, features: Features, transcripts: Transcripts, speakers: Speakers | None, spelling: Spelling,
        front_end: FrontEnd,
    ) -> UtteranceSet:  # fmt: skip
        """Check the data and read the features once, for their lengths and the speakers' means."""
        spelled = {}
        for utterance, words in transcripts.items():
            if utterance not in features:
                raise DataError(f"{utterance}: has a transcript but no features")
            if speakers is not None and utterance not in speakers:
                raise DataError(f"{utterance}: has no speaker")
            spelled[utterance] = spelling(utterance, words)
        if not spelled:
            raise DataError("no utterance has a transcript; nothing can be aligned")
        norms, lengths = collect_normalisers(front_end, features, list(spelled), speakers)
        return cls(features, speakers, spelled, norms, lengths)

    def subset(self, utterances: Sequence[str]) -> UtteranceSet:
        """Return a set of some utterances; alignments that are added to it later are not added here."""
        return replace(
            self,
            transcripts={u: self.transcripts[u] for u in utterances},
            alignments={u: self.alignments[u] for u in utterances if u in self.alignments},
        )

    @property
    def utterances(self) -> list[str]:
        """List utterances by length, so that utterances searched together have similar lengths."""
        return sorted(self.transcripts, key=lambda u: (self.lengths[u], u))

    @property
    def num_frames(self) -> int:
        """Count the frames."""
        return sum(self.lengths[u] for u in self.transcripts)

    def speaker(self, utterance: str) -> str:
        """Return the speaker's name; without speakers, the utterance's."""
        return self.speakers[utterance] if self.speakers is not None else utterance

    def item(self, utterance: str) -> PassItem:
        """Read one utterance."""
        speaker = self.speaker(utterance)
        return PassItem(
            utterance,
            np.asarray(self.features[utterance]),
            self.normalisers[speaker],
            self.transcripts[utterance],
            self.transforms.get(speaker),
            self.alignments.get(utterance),
            speaker,
        )

    def chunks(self, utterances: Sequence[str] | None = None) -> Iterator[list[PassItem]]:
        """Read utterances chunk by chunk; the chunks do not depend on the number of processes."""
        items = map(self.item, self.utterances if utterances is None else utterances)
        return in_chunks(items, lambda item: self.lengths[item.utterance], FRAMES_PER_CHUNK)

    def speaker_chunks(self) -> Iterator[list[PassItem]]:
        """Read one chunk per speaker: all utterances, or the first ten minutes, which are enough for a matrix."""
        of_speaker: dict[str, list[str]] = {}
        for utterance in self.transcripts:
            of_speaker.setdefault(self.speaker(utterance), []).append(utterance)
        for utterances in of_speaker.values():
            ends = np.cumsum([self.lengths[u] for u in utterances])
            enough = 1 + int(np.searchsorted(ends, FRAMES_PER_SPEAKER))
            yield [self.item(utterance) for utterance in utterances[:enough]]

    def aligned_chunks(self) -> Iterator[list[PassItem]]:
        """Read the utterances that have an alignment."""
        return self.chunks([u for u in self.utterances if u in self.alignments])


def align_chunk(model: Model, chunk: list[PassItem]) -> list[Alignment | str]:
    """Align utterances; a string is the reason why an utterance cannot be aligned."""
    return _align(model, chunk, [item.frames(model.front_end) for item in chunk])


def _align(model: Model, chunk: list[PassItem], frames: list[Array]) -> list[Alignment | str]:
    build = GraphBuilder(model.tree)
    graphs = [build(item.transcript) for item in chunk]
    scores = [model.gmm.score(x, graph.senones) for x, graph in zip(frames, graphs, strict=True)]
    paths = search(graphs, scores, model.transitions)
    return [
        Alignment.from_path(graph, path) if path else too_short(graph, len(x))
        for graph, path, x in zip(graphs, paths, frames, strict=True)
    ]


def too_short(graph: UtteranceHmm, num_frames: int) -> str:
    """Return the reason why no path fits."""
    return f"{num_frames} frames are too few for the {graph.min_frames()} states of its shortest pronunciation"


def realign_chunk(model: Model, chunk: list[PassItem]) -> tuple[list[Alignment | str], Statistics]:
    """Align, and accumulate statistics of the aligned utterances."""
    frames = [item.frames(model.front_end) for item in chunk]
    found = _align(model, chunk, frames)
    pairs = [(x, a) for x, a in zip(frames, found, strict=True) if isinstance(a, Alignment)]
    return found, _accumulate(model.gmm, pairs)


def accumulate_chunk(model: Model, chunk: list[PassItem]) -> Statistics:
    """Accumulate statistics with the present alignments."""
    return _accumulate(model.gmm, aligned_frames(model.front_end, chunk))


def aligned_frames(front_end: FrontEnd, chunk: list[PassItem]) -> list[tuple[Array, Alignment]]:
    """Compute the features of utterances that have an alignment."""
    return [(item.frames(front_end), item.alignment) for item in chunk if item.alignment is not None]


def _accumulate(gmm: Gmm, pairs: list[tuple[Array, Alignment]]) -> Statistics:
    if not pairs:
        return Statistics.empty(gmm)
    frames, senones = np.concatenate([x for x, _ in pairs]), np.concatenate([a.senones for _, a in pairs])
    statistics = accumulate(gmm, frames, senones)
    for _, alignment in pairs:
        count_moves(statistics.moves, alignment)
    return statistics


def count_moves(moves: Array, alignment: Alignment) -> None:
    """Count how often each senone's state was kept and left; the last frame counts as left."""
    phone_of = np.repeat(np.arange(len(alignment.phones)), np.diff(alignment.starts))
    place = phone_of * 4 + alignment.states
    stayed = np.append(place[1:] == place[:-1], False)
    np.add.at(moves, (alignment.senones, np.where(stayed, 0, 1)), 1)


def moments_chunk(shared: tuple[FrontEnd, int], chunk: list[PassItem]) -> Array:
    """Sum moments per senone of aligned frames: (num_senones, 1 + 2D)."""
    front_end, num_senones = shared
    pairs = aligned_frames(front_end, chunk)
    frames = np.concatenate([x for x, _ in pairs]).astype(np.float64)
    senones = np.concatenate([a.senones for _, a in pairs])
    rows = np.concatenate([np.ones((len(frames), 1)), frames, frames**2], axis=1)
    moments = np.zeros((num_senones, rows.shape[1]))
    order = np.argsort(senones, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(senones[order]) != 0])
    moments[senones[order][starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return moments


def tree_chunk(shared: tuple[FrontEnd, int], chunk: list[PassItem]) -> TreeStatistics:
    """Collect the moments of triphone states."""
    front_end, num_phones = shared
    pairs = aligned_frames(front_end, chunk)
    contexts = np.concatenate([a.contexts() for _, a in pairs])
    return TreeStatistics.collect(num_phones, contexts, np.concatenate([x for x, _ in pairs]))


def scatter_chunk(shared: tuple[FrontEnd, int], chunk: list[PassItem]) -> Scatter:
    """Collect the statistics of LDA, for spliced cepstra with senones as classes."""
    front_end, num_senones = shared
    pairs = [(item, item.alignment) for item in chunk if item.alignment is not None]
    frames = [front_end.spliced(front_end.normalised(item.features, item.normaliser)) for item, _ in pairs]
    return Scatter.collect(np.concatenate(frames), np.concatenate([a.senones for _, a in pairs]), num_senones)


def mllt_chunk(model: Model, chunk: list[PassItem]) -> MlltStatistics:
    """Collect the statistics of MLLT."""
    pairs = aligned_frames(model.front_end, chunk)
    senones = np.concatenate([a.senones for _, a in pairs])
    return collect_mllt(model.gmm, np.concatenate([x for x, _ in pairs]), senones)


def fmllr_chunk(shared: tuple[Model, Gmm], chunk: list[PassItem]) -> tuple[str, Array]:
    """Estimate the matrix of a chunk's speaker, from given alignments or from new ones with the unadapted model.

    Posteriors of the target mixtures are computed from features transformed by the speaker's present matrix, if any.
    Silence is left out, since it does not depend on the speaker.
    """
    model, target = shared
    plain = [model.front_end(item.features, item.normaliser) for item in chunk]
    missing = [i for i, item in enumerate(chunk) if item.alignment is None]
    found: dict[int, Alignment | str] = {i: a for i, item in enumerate(chunk) if (a := item.alignment) is not None}
    found |= dict(zip(missing, _align(model, [chunk[i] for i in missing], [plain[i] for i in missing]), strict=True))
    frames, adapted, senones = [], [], []
    for i, item in enumerate(chunk):
        alignment = found[i]
        if isinstance(alignment, Alignment):
            speech = np.repeat(alignment.phones != SILENCE, np.diff(alignment.starts))
            frames.append(plain[i][speech])
            adapted.append(frames[-1] if item.transform is None else item.frames(model.front_end)[speech])
            senones.append(alignment.senones[speech])
    statistics = FmllrStatistics.empty(target.num_features)
    if sum(map(len, frames)):
        whole = np.concatenate(adapted)
        statistics = collect_fmllr(target, np.concatenate(frames), np.concatenate(senones), adapted=whole)
    return chunk[0].speaker, estimate_fmllr(statistics).astype(np.float32)


def first_pass_chunk(model: Model, chunk: list[PassItem]) -> Statistics:
    """Accumulate unadapted features with the posteriors of adapted ones."""
    pairs = [(item, item.alignment) for item in chunk if item.alignment is not None]
    adapted = np.concatenate([item.frames(model.front_end) for item, _ in pairs])
    plain = np.concatenate([model.front_end(item.features, item.normaliser) for item, _ in pairs])
    return accumulate(model.gmm, adapted, np.concatenate([a.senones for _, a in pairs]), moments_of=plain)

"""Train HMM-GMM acoustic models: monophones, tied triphones, LDA+MLLT, fMLLR."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated

import numpy as np

from roundelay.config import Depth, Positive, Seed, Width, check_bounds, limits
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.arrays import Array, Features, Speakers, Transcripts
from roundelay.speech.gmm.corpus_passes import (
    Model,
    UtteranceSet,
    accumulate_chunk,
    first_pass_chunk,
    fmllr_chunk,
    mllt_chunk,
    moments_chunk,
    realign_chunk,
    scatter_chunk,
    too_short,
    tree_chunk,
)
from roundelay.speech.gmm.decision_tree import SILENCE, STATES, Tree, TreeStatistics
from roundelay.speech.gmm.front_end import FrontEnd, Input
from roundelay.speech.gmm.gaussian_mixtures import Gmm, Statistics, update
from roundelay.speech.gmm.hmm import GraphBuilder, Pronouncer, Pronunciations, Spelling
from roundelay.speech.gmm.hmm_gmm import HmmGmm, ModelLexicon
from roundelay.speech.gmm.lda_mllt import MlltStatistics, Scatter, estimate_lda, estimate_mllt
from roundelay.speech.gmm.viterbi import Transitions
from roundelay.speech.worker_pool import WorkerPool

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


@dataclass(frozen=True, kw_only=True)
class GmmSettings:
    """How to train an HMM-GMM."""

    input: Input = "fbank"  # log-mel: a DCT is taken; static cepstra; or final features, used as they are
    num_cepstra: Depth = 13
    num_senones: Width = 400
    num_gaussians: Annotated[int, limits(ge=1, largest=10**7)] = 2000
    mono_gaussians: Width = 800
    mono_iterations: Depth = 22
    iterations: Depth = 18  # of the triphone stage, and of each stage after it
    adapt: bool = False  # LDA+MLLT and fMLLR per speaker on top
    num_projected: Depth = 40  # features kept by LDA
    mono_hours: Positive = 1.0  # the flat start takes a sample of utterances of this much speech
    hours: Positive = 30.0  # and the later stages one of this much
    frames_per_second: Positive = 100.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self, "gmm.")
        if self.num_gaussians < self.num_senones:
            raise SettingsError(
                f"gmm.num_gaussians must be at least num_senones, {self.num_senones}, not {self.num_gaussians}"
            )
        if self.input not in ("fbank", "mfcc", "final"):
            raise SettingsError(f"gmm.input: {suggest(self.input, ('fbank', 'mfcc', 'final'))}")


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """The iterations at which a stage realigns, decorrelates and adapts."""

    iterations: int
    num_gaussians: int
    realign: Sequence[int] = ()
    decorrelate: Sequence[int] = ()
    adapt: Sequence[int] = ()


class Trainer:
    """State of training: corpus, random generator, progress."""

    def __init__(
        self, corpus: UtteranceSet, workers: WorkerPool, settings: GmmSettings, progress: Progress | None
    ) -> None:
        self.corpus, self.workers, self.settings = corpus, workers, settings
        self.progress = progress or (lambda *_: None)
        self.rng = np.random.default_rng(settings.seed)
        self.failures: dict[str, str] = {}
        self.floor: Array = np.zeros(0)

    def realign(self, model: Model) -> Statistics:
        """Align the corpus with the model and accumulate statistics."""
        statistics = Statistics.empty(model.gmm)
        utterances = iter(self.corpus.utterances)
        found: dict[str, Alignment] = {}
        self.failures = {}
        for alignments, part in self.workers.map(realign_chunk, model, self.corpus.chunks()):
            statistics += part
            for alignment in alignments:
                utterance = next(utterances)
                if isinstance(alignment, str):
                    self.failures[utterance] = alignment
                else:
                    found[utterance] = alignment
        if not found:
            utterance, reason = next(iter(self.failures.items()))
            raise DataError(f"{utterance}: {reason}; none of {len(self.failures)} utterances could be aligned")
        self.corpus.alignments = found
        return statistics

    def accumulate(self, model: Model) -> Statistics:
        """Accumulate statistics with the present alignments."""
        parts = self.workers.map(accumulate_chunk, model, self.corpus.aligned_chunks())
        return reduce(Statistics.__iadd__, parts, Statistics.empty(model.gmm))

    def iterate(self, stage: str, model: Model, plan: StagePlan) -> Model:
        """Alternate realignment and estimation; mixtures grow evenly over the first three quarters."""
        start = model.gmm.num_gaussians
        growing = max(1, plan.iterations * 3 // 4)
        for i in range(plan.iterations):
            if i in plan.adapt:
                self.adapt(model)
            statistics = self.realign(model) if i in plan.realign else self.accumulate(model)
            gmm = update(model.gmm, statistics, self.floor)
            wanted = start + (plan.num_gaussians - start) * min(i + 1, growing) // growing
            if i < growing and wanted > gmm.num_gaussians:
                gmm = gmm.grow(wanted, statistics.occupancy(model.gmm), self.rng)
            model = replace(model, gmm=gmm, transitions=Transitions.estimate(statistics.moves))
            if i in plan.decorrelate:
                model = self.decorrelate(model)
            log.info(
                "%s: iteration %d of %d, %d Gaussians, log-likelihood %.3f per frame, %d utterances not aligned",
                stage, i + 1, plan.iterations, gmm.num_gaussians,
                statistics.log_likelihood / max(statistics.frames, 1), len(self.failures),
            )  # fmt: skip
            self.progress(stage, i + 1, plan.iterations)
        return model

    def decorrelate(self, model: Model) -> Model:
        """Estimate MLLT and apply it to features and means."""
        parts = self.workers.map(mllt_chunk, model, self.corpus.aligned_chunks())
        a = estimate_mllt(reduce(MlltStatistics.__iadd__, parts))
        projection, gmm = model.front_end.projection, model.gmm
        assert projection is not None
        turned = Gmm(gmm.counts, gmm.weights, gmm.means @ a.T, gmm.variances)
        return replace(model, front_end=model.front_end.projected(a @ projection), gmm=turned)

    def adapt(self, model: Model) -> None:
        """Estimate every speaker's matrix from the present alignments."""
        aligned = self.corpus.subset([u for u in self.corpus.transcripts if u in self.corpus.alignments])
        self.corpus.transforms = dict(self.workers.map(fmllr_chunk, (model, model.gmm), aligned.speaker_chunks()))

    def fit_single_gaussians(self, front_end: FrontEnd, tree: Tree) -> Model:
        """Fit one Gaussian per senone to the present alignments."""
        shared = (front_end, tree.num_senones)
        moments = sum(self.workers.map(moments_chunk, shared, self.corpus.aligned_chunks()))
        assert isinstance(moments, np.ndarray)
        whole = moments.sum(0)
        num_features = (len(whole) - 1) // 2
        mean = whole[1 : 1 + num_features] / whole[0]
        self.floor = 0.01 * (whole[1 + num_features :] / whole[0] - mean**2)
        return Model(front_end, tree, Gmm.single(moments, self.floor), Transitions.flat(tree.num_senones))

    def retie(self, tree: Tree) -> None:
        """Replace the senones of the alignments by those of another tree."""
        self.corpus.alignments = {u: a.retie(tree) for u, a in self.corpus.alignments.items()}

    def grow_tree(self, front_end: FrontEnd, num_phones: int) -> Tree:
        """Grow a tree from the present alignments."""
        parts = self.workers.map(tree_chunk, (front_end, num_phones), self.corpus.aligned_chunks())
        return Tree.grow(reduce(TreeStatistics.merge, parts), num_senones=self.settings.num_senones)


def equal_alignment(transcript: Sequence[Pronunciations], num_frames: int, tree: Tree) -> Alignment | None:
    """Align an utterance evenly to its first pronunciations, with silence at both ends if it is long enough."""
    phones = [phone for variants in transcript for phone in variants[0]]
    words = [position for position, variants in enumerate(transcript) for _ in variants[0]]
    if not phones or num_frames >= STATES * (len(phones) + 2):
        phones, words = [SILENCE, *phones, SILENCE], [-1, *words, -1]
    num_states = STATES * len(phones)
    if num_frames < num_states:
        return None
    state_of = np.arange(num_frames) * num_states // num_frames
    starts = np.searchsorted(state_of, np.arange(0, num_states + 1, STATES)).astype(np.int32)
    states = (state_of % STATES).astype(np.int8)
    whole = Alignment(np.array(phones, np.int16), np.array(words, np.int32), starts, states, np.zeros(0, np.int32))
    return whole.retie(tree)


def sample(corpus: UtteranceSet, num_frames: float, seed: int) -> UtteranceSet:
    """Draw utterances at random up to ``num_frames``; return all of them if they have fewer frames."""
    if corpus.num_frames <= num_frames:
        return corpus
    utterances = sorted(corpus.transcripts)
    order = np.random.default_rng(seed).permutation(len(utterances))
    ends = np.cumsum([corpus.lengths[utterances[i]] for i in order])
    return corpus.subset([utterances[i] for i in sorted(order[: 1 + int(np.searchsorted(ends, num_frames))])])


def mono_realignments(iterations: int) -> list[int]:
    """List the iterations that realign monophones: all in the first half, then every other one."""
    return [i for i in range(1, iterations) if i <= iterations // 2 or i % 2 == 0]


def train_monophones(trainer: Trainer, front_end: FrontEnd, num_phones: int) -> Model:
    """Train monophones from a flat start."""
    settings, corpus = trainer.settings, trainer.corpus
    tree = Tree.monophone(num_phones)
    for utterance in corpus.utterances:
        alignment = equal_alignment(corpus.transcripts[utterance], corpus.lengths[utterance], tree)
        if alignment:
            corpus.alignments[utterance] = alignment
    if not corpus.alignments:
        utterance = corpus.utterances[-1]
        reason = too_short(GraphBuilder(tree)(corpus.transcripts[utterance]), corpus.lengths[utterance])
        raise DataError(f"{utterance}: {reason}; and it is the longest utterance")
    model = trainer.fit_single_gaussians(front_end, tree)
    n = settings.mono_iterations
    plan = StagePlan(iterations=n, num_gaussians=settings.mono_gaussians, realign=mono_realignments(n))
    return trainer.iterate("monophones", model, plan)


def train_triphones(trainer: Trainer, front_end: FrontEnd, num_phones: int) -> Model:
    """Grow a tree from the present alignments, and train its senones."""
    tree = trainer.grow_tree(front_end, num_phones)
    trainer.retie(tree)
    n = trainer.settings.iterations
    plan = StagePlan(iterations=n, num_gaussians=trainer.settings.num_gaussians, realign=range(3, n, 4))
    return trainer.iterate("triphones", trainer.fit_single_gaussians(front_end, tree), plan)


def train_projected(trainer: Trainer, model: Model) -> Model:
    """Replace deltas by LDA of spliced frames, grow a new tree, and train its senones with MLLT."""
    shared = (model.front_end, model.tree.num_senones)
    parts = trainer.workers.map(scatter_chunk, shared, trainer.corpus.aligned_chunks())
    scatter = reduce(Scatter.__iadd__, parts)
    front_end = model.front_end.projected(
        estimate_lda(scatter, min(trainer.settings.num_projected, scatter.sums.shape[1]))
    )
    tree = trainer.grow_tree(front_end, model.tree.num_phones)
    trainer.retie(tree)
    n = trainer.settings.iterations
    plan = StagePlan(
        iterations=n,
        num_gaussians=trainer.settings.num_gaussians,
        realign=range(3, n, 4),
        decorrelate=[i for i in (1, 3, 5, 9) if i < n],
    )
    return trainer.iterate("LDA+MLLT", trainer.fit_single_gaussians(front_end, tree), plan)


def train_adapted(trainer: Trainer, model: Model) -> tuple[Model, Gmm]:
    """Train on features adapted to each speaker; also return mixtures for unadapted features, for the first pass."""
    n = max(4, trainer.settings.iterations // 2)
    plan = StagePlan(iterations=n, num_gaussians=model.gmm.num_gaussians, realign=range(2, n, 3), adapt=range(0, n, 3))
    model = trainer.iterate("fMLLR", model, plan)
    parts = trainer.workers.map(first_pass_chunk, model, trainer.corpus.aligned_chunks())
    return model, update(model.gmm, reduce(Statistics.__iadd__, parts), trainer.floor)


def train_gmm(
    features: Features, transcripts: Transcripts, speakers: Speakers, lexicon: Pronouncer, settings: GmmSettings,
    progress: Progress | None = None, jobs: int = 1,
) -> HmmGmm:  # fmt: skip
    """Train an acoustic model from a flat start."""
    front_end = FrontEnd(input=settings.input, num_cepstra=settings.num_cepstra)
    spelling = Spelling(lexicon)
    num_phones = len(spelling.phones)
    with WorkerPool(jobs) as workers:
        whole = UtteranceSet.open(features, transcripts, speakers, spelling, front_end)
        whole = sample(whole, settings.hours * 3600 * settings.frames_per_second, settings.seed)
        small = sample(whole, settings.mono_hours * 3600 * settings.frames_per_second, settings.seed)
        trainer = Trainer(small, workers, settings, progress)
        model = train_monophones(trainer, front_end, num_phones)
        if small is not whole:
            trainer.corpus = whole
            trainer.realign(model)
        model = train_triphones(trainer, front_end, num_phones)
        first_pass = None
        if settings.adapt:
            model = train_projected(trainer, model)
            model, first_pass = train_adapted(trainer, model)
    words = ModelLexicon(spelling.phones, {word: list(variants) for word, variants in lexicon.pronunciations.items()})
    return HmmGmm(model, words, first_pass, trainer.failures)

"""Recognise words from features, utterance by utterance, in one process or several."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import (
    Pruning,
    Weights,
    acoustic_scores,
    add_word_penalty,
    best_path,
    check_fit,
    import_decoders,
    repeat_sentences,
    to_words,
)
from roundelay.speech.decoding.grammar import Grammar, read_known_lexicon
from roundelay.speech.decoding.nbest import n_best
from roundelay.speech.decoding.network_scorer import Scorer, load_network
from roundelay.speech.decoding.word_times import WordTimer
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.language.decoding_graph import read_graph
from roundelay.speech.worker_pool import WorkerPool, in_chunks

Array = npt.NDArray[Any]
Item = tuple[str, Array]
Progress = Callable[[int, int], None]
_FRAMES_PER_CHUNK = 3000


@dataclass(frozen=True)
class RecognitionPlan:
    """How to recognise utterances; small, since it is sent with every chunk."""

    run: Path
    grammar: Grammar
    weights: tuple[Weights, ...]
    """Each utterance is decoded once with each of these."""
    pruning: Pruning = field(default_factory=Pruning)
    times: bool = False
    nbest: int = 0
    priors: tuple[float, ...] | None = None
    """Priors to use instead of the run's; a CTC run has none."""
    sentences: bool = False
    """Whether an utterance may have several sentences."""
    device: str = "cpu"
    """What the network computes on."""


@dataclass(frozen=True)
class RecognisedUtterance:
    """Result of an utterance with the first of the plan's weights; for the other weights only the words."""

    utterance: str
    words: list[str]
    seconds: float
    """Length of the audio."""
    spent: float = 0.0
    """CPU seconds of network and search."""
    complete: bool = True
    """Whether the path ends at a sentence's end."""
    times: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each word in seconds, if requested."""
    alternatives: list[tuple[float, list[str]]] = field(default_factory=list)
    """Cost and words of the best alternatives, if requested."""
    others: list[list[str]] = field(default_factory=list)
    """Words for each of the plan's other weights."""


class Recogniser:
    """A run's network and graph, loaded."""

    def __init__(self, run: Path, grammar: Grammar, device: str = "cpu") -> None:
        self.bundle = Bundle.open(run)
        self.scorer = Scorer(load_network(run, self.bundle), device)
        own = grammar.lexicon == self.bundle.folder / "lexicon.txt"
        self.lexicon = self.bundle.lexicon if own else read_known_lexicon(self.bundle, grammar.lexicon)
        self._graph = read_graph(grammar.graph)
        if not own:
            check_fit(self._graph, self.bundle.outputs, str(grammar.graph))
        self.graph = functools.lru_cache(maxsize=4)(self._with_penalty)  # tuning uses three at a time

    def _with_penalty(self, penalty: float, several: bool) -> Any:
        _, kaldifst = import_decoders()
        graph = add_word_penalty(self._graph, penalty, len(self.lexicon.words))
        return kaldifst.StdConstFst(repeat_sentences(graph) if several else graph)

    @functools.cached_property
    def timer(self) -> WordTimer:
        """Return the object that finds the times of words."""
        return WordTimer(self.lexicon, None if self.bundle.ctc else self.bundle.tree)

    @property
    def frame_seconds(self) -> float:
        """Return the seconds between two scores of the network."""
        return self.bundle.feature_settings.frame_shift_seconds * self.scorer.model.stride

    def log_priors(self, given: Sequence[float] | None) -> npt.NDArray[np.float64]:
        """Return the logarithms of the outputs' priors; zeros if there are none."""
        if given is not None:
            return np.log(np.asarray(given, np.float64))
        return np.zeros(self.bundle.outputs) if self.bundle.ctc else np.log(self.bundle.priors)

    def __call__(self, plan: RecognitionPlan, chunk: Sequence[Item]) -> list[RecognisedUtterance]:
        """Recognise some utterances."""
        found, scores = zip(*(self._one(plan, *item) for item in chunk), strict=True) if chunk else ((), ())
        if not plan.times:
            return list(found)
        shift = self.frame_seconds
        spans = self.timer([item.words for item in found], scores)
        times = [[(begin * shift, end * shift) for begin, end in of_item] for of_item in spans]
        return [replace(item, times=of_item) for item, of_item in zip(found, times, strict=True)]

    def _one(
        self, plan: RecognitionPlan, utterance: str, features: Array
    ) -> tuple[RecognisedUtterance, npt.NDArray[np.float32]]:
        first, *rest = plan.weights
        graph, priors = self.graph(first.penalty, plan.sentences), self.log_priors(plan.priors)  # made once: not timed
        start = time.process_time()
        posteriors = self.scorer(features)
        scores = acoustic_scores(posteriors, priors, first)
        best = best_path(graph, scores, plan.pruning)
        spent = time.process_time() - start
        found = RecognisedUtterance(
            utterance,
            to_words(best.words, self.lexicon.words),
            len(features) * self.bundle.feature_settings.frame_shift_seconds,
            spent,
            best.complete,
            alternatives=self._alternatives(scores, first, plan) if plan.nbest else [],
            others=[self._words(acoustic_scores(posteriors, priors, weights), weights, plan) for weights in rest],
        )
        return found, scores

    def _words(self, scores: npt.NDArray[np.float32], weights: Weights, plan: RecognitionPlan) -> list[str]:
        return to_words(
            best_path(self.graph(weights.penalty, plan.sentences), scores, plan.pruning).words, self.lexicon.words
        )

    def _alternatives(
        self, scores: npt.NDArray[np.float32], weights: Weights, plan: RecognitionPlan
    ) -> list[tuple[float, list[str]]]:
        found = n_best(self.graph(weights.penalty, plan.sentences), scores, plan.pruning, plan.nbest)
        return [(best.cost, to_words(best.words, self.lexicon.words)) for best in found]


@functools.lru_cache(maxsize=2)
def load_recogniser(run: Path, grammar: Grammar, device: str, _when: tuple[int, ...]) -> Recogniser:
    """Load once per process; load changed files again."""
    return Recogniser(run, grammar, device)


def _loaded(plan: RecognitionPlan) -> Recogniser:
    files = (plan.run / "model.safetensors", plan.run / "settings.toml", plan.grammar.graph)
    return load_recogniser(
        plan.run, plan.grammar, plan.device, tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in files)
    )


def recognise_chunk(plan: RecognitionPlan, chunk: Sequence[Item]) -> list[RecognisedUtterance]:
    """Recognise some utterances, each with all of the plan's weights."""
    return _loaded(plan)(plan, chunk)


def mean_posterior_chunk(plan: RecognitionPlan, chunk: Sequence[Item]) -> tuple[int, npt.NDArray[np.float64]]:
    """Count frames and sum their posteriors: how often the network predicts each output."""
    scorer = _loaded(plan).scorer
    posteriors = [np.exp(scorer(features).astype(np.float64)) for _, features in chunk]
    return sum(map(len, posteriors)), np.sum([found.sum(0) for found in posteriors], axis=0)


def chunks(inputs: CombinedInputs, utterances: Sequence[str]) -> Iterator[list[Item]]:
    """Read utterances in chunks of about ``_FRAMES_PER_CHUNK`` frames."""
    items = ((name, np.array(inputs[name])) for name in utterances)
    return in_chunks(items, lambda item: len(item[1]), _FRAMES_PER_CHUNK)


def recognise(
    plan: RecognitionPlan,
    inputs: CombinedInputs,
    utterances: Sequence[str],
    workers: WorkerPool,
    progress: Progress = lambda *_: None,
) -> Iterator[RecognisedUtterance]:
    """Recognise utterances in their order."""
    done = 0
    for part in workers.map(recognise_chunk, plan, chunks(inputs, utterances)):
        done += len(part)
        progress(done, len(utterances))
        yield from part
    inputs.finish_checks()  # nothing is made of damaged features

"""Find the best paths through a decoding graph.

The cost of a path is the graph's costs, plus ``penalty`` for each word, minus ``scale`` times the sum over frames of
log-posterior less ``prior`` times log-prior.  A scale of 0.1 is what others call a language-model weight of 10.
Legend: T frames, S outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from roundelay.config import Positive, check_bounds, limits
from roundelay.errors import DataError, import_extra

if TYPE_CHECKING:
    Fst = Any  # kaldifst publishes no types

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """Weights that are tuned on dev: of the network's scores, of words, and of priors."""

    scale: Positive = 0.15
    """Weight of the network's scores against the graph's costs."""
    penalty: float = 0.0
    """Cost added per word; a larger penalty gives fewer words."""
    prior: float = 0.5
    """Exponent of the senones' priors by which posteriors are divided."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Pruning:
    """Limits of the search: the cost of a path above the best one, and the number of active paths."""

    beam: Positive = 13.0
    max_active: Annotated[int, limits(ge=2, largest=2**31 - 1)] = 2000

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class BestPath:
    """The best path: its word ids, its cost, and whether it ends at a sentence's end."""

    words: list[int]
    cost: float
    complete: bool = True


def import_decoders() -> tuple[ModuleType, ModuleType]:
    """Return kaldi_decoder and kaldifst."""
    return import_extra("kaldi_decoder", "speech"), import_extra("kaldifst", "speech")


def add_word_penalty(graph: Fst, penalty: float, num_words: int) -> Fst:
    """Return the graph with ``penalty`` added to the cost of each word."""
    if penalty == 0:
        return graph
    _, kaldifst = import_decoders()
    loop = kaldifst.StdVectorFst()
    loop.start = loop.add_state()
    loop.set_final(loop.start, 0.0)
    for word in range(1, num_words + 1):
        loop.add_arc(loop.start, kaldifst.StdArc(word, word, penalty, loop.start))
    kaldifst.arcsort(loop, "ilabel")
    return kaldifst.compose(graph, loop, match_side="right")


def repeat_sentences(graph: Fst) -> Fst:
    """Return the graph with an arc from each sentence's end back to the start."""
    _, kaldifst = import_decoders()
    result = kaldifst.StdVectorFst(graph)
    for state in range(result.num_states):
        cost = result.final(state).value
        if math.isfinite(cost):
            # A positive cost prevents an endless loop of empty sentences.
            result.add_arc(state, kaldifst.StdArc(0, 0, max(cost, 0.0) + 0.1, result.start))
    return result


def largest_input(graph: Fst) -> int:
    """Return the largest input label: a model needs at least as many outputs."""
    _, kaldifst = import_decoders()
    labels = (arc.ilabel for state in kaldifst.StateIterator(graph) for arc in kaldifst.ArcIterator(graph, state))
    return max(labels, default=0)


def check_fit(graph: Fst, outputs: int, where: str) -> None:
    """Raise if the graph has senones that the model does not have."""
    needed = largest_input(graph)
    if needed > outputs:
        raise DataError(
            f"{where}: the graph needs {needed} outputs, but the model has {outputs}; use the run's own graphs"
        )


def acoustic_scores(log_posteriors: Array, log_priors: npt.NDArray[np.float64], weights: Weights) -> Array:
    """Convert log-posteriors (T, S) to scaled log-likelihoods."""
    shift = (weights.prior * log_priors).astype(np.float32)
    return np.ascontiguousarray((log_posteriors - shift) * np.float32(weights.scale), np.float32)


def best_path(graph: Fst, scores: Array, pruning: Pruning) -> BestPath:
    """Search scores (T, S); if no path ends at a sentence's end, return the best incomplete one."""
    if not len(scores):
        return BestPath([], 0.0, False)
    kaldi_decoder, kaldifst = import_decoders()
    options = kaldi_decoder.FasterDecoderOptions(
        beam=pruning.beam, max_active=pruning.max_active, min_active=min(20, pruning.max_active - 1)
    )
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    complete = decoder.reached_final()
    found, best = decoder.get_best_path(use_final_probs=complete)
    if not found:
        return BestPath([], math.inf, False)
    _, _, words, weight = kaldifst.get_linear_symbol_sequence(best)
    return BestPath(list(words), weight.value1 + weight.value2, complete)


def to_words(ids: Sequence[int], words: Sequence[str]) -> list[str]:
    """Turn word ids into words."""
    return [words[i - 1] for i in ids]

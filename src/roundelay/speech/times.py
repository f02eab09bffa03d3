"""When each recognised word was said: the best path of just these words through the same scores.

A decoding graph gives words out as early or late as its minimisation likes, so its own times are not to be trusted.
Legend: T frames, S outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.speech.alignment import Alignment
from roundelay.speech.hmm import GraphBuilder, Spelling
from roundelay.speech.lexicon import Lexicon
from roundelay.speech.search import modules
from roundelay.speech.tree import Tree
from roundelay.speech.viterbi import Transitions, search

Array = npt.NDArray[np.float32]
Span = tuple[int, int]
"""First frame, and the frame after the last."""


class Timer:
    """Find the frames of each word, through the senones of a tree, or through CTC's phones where there is none."""

    def __init__(self, lexicon: Lexicon, tree: Tree | None) -> None:
        self._lexicon = lexicon
        self._spelling = Spelling(lexicon)
        self._build = GraphBuilder(tree) if tree else None
        # The decoding graph has no transition probabilities either.
        zeros = np.zeros(tree.num_senones if tree else 0, np.float32)
        self._transitions = Transitions(zeros, zeros)

    def __call__(self, words: Sequence[str], scores: Array) -> list[Span]:
        """Give the span of each word in scores (T, S); evenly spread where no path fits."""
        if not words:
            return []
        found = self._by_states(words, scores) if self._build else self._by_ctc(words, scores)
        return found or spread(len(words), len(scores))

    def _by_states(self, words: Sequence[str], scores: Array) -> list[Span]:
        assert self._build is not None, "there is a tree"
        graph = self._build(self._spelling("hypothesis", words))
        (path,) = search([graph], [scores.T[graph.senones]], self._transitions)
        if path is None:
            return []
        found = Alignment.of_path(graph, path)
        spans: dict[int, Span] = {}
        for word, (begin, end) in zip(found.words.tolist(), pairwise(found.starts.tolist()), strict=True):
            if word >= 0:
                spans[word] = (spans.get(word, (begin, end))[0], end)
        return [spans[word] for word in sorted(spans)]

    def _by_ctc(self, words: Sequence[str], scores: Array) -> list[Span]:
        from roundelay.speech.graph import ctc_linear

        kaldi_decoder, _ = modules()
        graph = ctc_linear(words, self._lexicon)  # a name of its own: the decoder does not keep it alive
        decoder = kaldi_decoder.FasterDecoder(graph, kaldi_decoder.FasterDecoderOptions(beam=1e4))
        decoder.decode(kaldi_decoder.DecodableCtc(scores))
        if not decoder.reached_final():
            return []
        return _spans(decoder.get_best_path()[1])


def _spans(best: Any) -> list[Span]:
    """Read a linear lattice: a word begins with the frame that gives it out, and ends after its last phone."""
    begins: list[int] = []
    ends: list[int] = []
    frame = 0
    for line in best.to_str().splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        label, word = int(fields[2]), int(fields[3])
        if word:
            begins.append(frame)
            ends.append(frame + 1)
        if label > 1 and ends:  # 1 is the blank
            ends[-1] = frame + 1
        frame += label > 0
    return list(zip(begins, ends, strict=True))


def spread(count: int, frames: int) -> list[Span]:
    """Share frames evenly among words."""
    bounds = np.linspace(0, frames, count + 1).round().astype(int).tolist()
    return list(pairwise(bounds))

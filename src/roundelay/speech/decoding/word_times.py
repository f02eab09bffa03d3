"""Times of recognised words: align just these words with the same scores.

A decoding graph outputs words earlier or later, depending on its minimisation, so its own times cannot be used.
Legend: T frames, S outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.speech.decoding.beam_search import import_decoders
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.gmm.hmm import GraphBuilder, Spelling
from roundelay.speech.gmm.viterbi import Transitions, search
from roundelay.speech.language.lexicon import Lexicon

Array = npt.NDArray[np.float32]
Span = tuple[int, int]
"""First frame, and the frame after the last."""


class WordTimer:
    """Find the frames of each word by senones of a tree, or by CTC's phones if there is no tree."""

    def __init__(self, lexicon: Lexicon, tree: Tree | None) -> None:
        self._lexicon = lexicon
        self._spelling = Spelling(lexicon)
        self._build = GraphBuilder(tree) if tree else None
        # The decoding graph has no transition probabilities either.
        zeros = np.zeros(tree.num_senones if tree else 0, np.float32)
        self._transitions = Transitions(zeros, zeros)

    def __call__(self, words: Sequence[Sequence[str]], scores: Sequence[Array]) -> list[list[Span]]:
        """Return the span of each word of utterances with scores (T, S); evenly spread if no path fits."""
        if self._build:
            found = self._by_states(words, scores)
        else:
            found = [self._by_ctc(some, of_some) for some, of_some in zip(words, scores, strict=True)]
        return [
            spans or spread_evenly(len(some), len(of_some))
            for spans, some, of_some in zip(found, words, scores, strict=True)
        ]

    def _by_states(self, words: Sequence[Sequence[str]], scores: Sequence[Array]) -> list[list[Span]]:
        """Search all utterances at once: it takes little longer than the longest of them."""
        assert self._build is not None, "there is a tree"
        result: list[list[Span]] = [[] for _ in words]
        said = [i for i, some in enumerate(words) if some]
        graphs = [self._build(self._spelling("hypothesis", words[i])) for i in said]
        heard = [scores[i].T[graph.senones] for i, graph in zip(said, graphs, strict=True)]
        for i, graph, path in zip(said, graphs, search(graphs, heard, self._transitions), strict=True):
            if path is not None:
                result[i] = list(Alignment.from_path(graph, path).word_spans().values())
        return result

    def _by_ctc(self, words: Sequence[str], scores: Array) -> list[Span]:
        from roundelay.speech.language.decoding_graph import build_linear_ctc_graph

        if not words:
            return []
        kaldi_decoder, _ = import_decoders()
        graph = build_linear_ctc_graph(words, self._lexicon)  # a variable, since the decoder does not keep it alive
        decoder = kaldi_decoder.FasterDecoder(graph, kaldi_decoder.FasterDecoderOptions(beam=1e4))
        decoder.decode(kaldi_decoder.DecodableCtc(scores))
        if not decoder.reached_final():
            return []
        return _spans(decoder.get_best_path()[1])


def _spans(best: Any) -> list[Span]:
    """Read a linear lattice: a word begins at the frame of its output label, and ends after its last phone."""
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


def spread_evenly(count: int, frames: int) -> list[Span]:
    """Divide frames evenly among words."""
    bounds = np.linspace(0, frames, count + 1).round().astype(int).tolist()
    return list(pairwise(bounds))

"""Alignments of HMM states to frames.

T frames, n phones of an utterance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from roundelay.speech.gmm.arrays import Array, read_tensors, write_tensors
from roundelay.speech.gmm.decision_tree import SILENCE, Tree
from roundelay.speech.gmm.hmm import UtteranceHmm
from roundelay.speech.gmm.viterbi import StatePath

Segment = tuple[str, int, int]  # name, first frame, frame after the last


@dataclass(frozen=True, slots=True)
class Alignment:
    """The path of one utterance: its phones with their first frames, and the HMM state of every frame."""

    phones: Array  # (n,)
    words: Array  # (n,): position in the transcript, -1 for silence
    starts: Array  # (n + 1,); the last is T
    states: Array  # (T,): 0, 1 or 2
    senones: Array  # (T,), int32
    score: float = 0.0  # log-probability of the path

    @classmethod
    def from_path(cls, graph: UtteranceHmm, path: StatePath) -> Alignment:
        """Make the alignment of a path through a graph."""
        changes = np.flatnonzero(np.diff(path.nodes)) + 1
        starts = np.concatenate([[0], changes, [len(path.nodes)]]).astype(np.int32)
        nodes = path.nodes[starts[:-1]]
        senones = graph.senones[graph.index[path.states, path.nodes]].astype(np.int32)
        phones, words = graph.phones[nodes].astype(np.int16), graph.words[nodes].astype(np.int32)
        return cls(phones, words, starts, path.states, senones, path.score)

    def word_spans(self) -> dict[int, tuple[int, int]]:
        """Return the first frame and the frame after the last of each word, by position in the transcript."""
        spans: dict[int, tuple[int, int]] = {}
        for word, (begin, end) in zip(self.words.tolist(), pairwise(self.starts.tolist()), strict=True):
            if word >= 0:
                spans[word] = (spans.get(word, (begin, end))[0], end)
        return dict(sorted(spans.items()))

    def contexts(self) -> Array:
        """Return the left, centre and right phone and the state of every frame: (T, 4)."""
        padded = np.concatenate([[SILENCE], self.phones, [SILENCE]])
        triples = np.stack([padded[:-2], padded[1:-1], padded[2:]], axis=1)
        rows = np.repeat(triples, np.diff(self.starts), axis=0)
        return np.concatenate([rows, self.states[:, None]], axis=1)

    def retie(self, tree: Tree) -> Alignment:
        """Return the same path with the senones of another tree."""
        padded = [SILENCE, *self.phones.tolist(), SILENCE]
        triples = [tree.senones(*padded[i : i + 3]) for i in range(len(self.phones))]
        phone_of = np.repeat(np.arange(len(self.phones)), np.diff(self.starts))
        senones = np.array(triples, np.int32)[phone_of, self.states]
        return Alignment(self.phones, self.words, self.starts, self.states, senones, self.score)


class Alignments(Mapping[str, Array]):
    """Senones per frame (int32) of every aligned utterance, and the reasons why others failed."""

    def __init__(self, phone_names: Sequence[str]) -> None:
        self.phone_names = list(phone_names)
        self.failures: dict[str, str] = {}  # utterance -> reason
        self._found: dict[str, Alignment] = {}
        self._words: dict[str, tuple[str, ...]] = {}

    def add(self, utterance: str, words: Sequence[str], found: Alignment | str) -> None:
        """Add an alignment, or the reason why there is none."""
        if isinstance(found, str):
            self.failures[utterance] = found
            return
        self._found[utterance] = found
        self._words[utterance] = tuple(words)

    def __getitem__(self, utterance: str) -> Array:
        return self.path(utterance).senones

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def path(self, utterance: str) -> Alignment:
        """Return an utterance's alignment."""
        if utterance in self.failures:
            raise KeyError(f"{utterance} was not aligned: {self.failures[utterance]}")
        return self._found[utterance]

    def segments(self, utterance: str) -> list[Segment]:
        """List the phones of an utterance: name, first frame, frame after the last."""
        path = self.path(utterance)
        names = [self.phone_names[phone] for phone in path.phones]
        return [(name, begin, end) for name, (begin, end) in zip(names, pairwise(path.starts.tolist()), strict=True)]

    def words(self, utterance: str) -> list[Segment]:
        """List the words of an utterance in the same way, without silence."""
        spans = self.path(utterance).word_spans()
        return [(self._words[utterance][word], begin, end) for word, (begin, end) in spans.items()]

    def save(self, path: Path) -> None:
        """Write all alignments as one safetensors file."""
        found = list(self._found.values())
        arrays = {
            name: np.concatenate([getattr(a, name) for a in found]) if found else np.zeros(0, np.int32)
            for name in ("phones", "words", "starts", "states", "senones")
        }
        arrays["num_phones"] = np.array([len(a.phones) for a in found], np.int64)
        arrays["num_frames"] = np.array([len(a.states) for a in found], np.int64)
        arrays["scores"] = np.array([a.score for a in found])
        words = {utterance: " ".join(words) for utterance, words in self._words.items()}
        description = {"kind": "alignments", "version": 1, "phones": self.phone_names, "words": words}
        write_tensors(path, arrays, description | {"failures": self.failures})

    @classmethod
    def load(cls, path: Path) -> Alignments:
        """Read what ``save`` wrote."""
        arrays, description = read_tensors(path, "alignments")
        whole = cls(description["phones"])
        whole.failures = description["failures"]
        phones = frames = 0
        for i, (utterance, words) in enumerate(description["words"].items()):
            next_phones, next_frames = phones + int(arrays["num_phones"][i]), frames + int(arrays["num_frames"][i])
            whole._found[utterance] = Alignment(
                arrays["phones"][phones:next_phones],
                arrays["words"][phones:next_phones],
                arrays["starts"][phones + i : next_phones + i + 1],  # one more per utterance than phones
                arrays["states"][frames:next_frames],
                arrays["senones"][frames:next_frames],
                float(arrays["scores"][i]),
            )
            whole._words[utterance] = tuple(words.split())
            phones, frames = next_phones, next_frames
        return whole

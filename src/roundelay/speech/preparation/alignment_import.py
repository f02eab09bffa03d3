"""Import alignments of the user: runs of states, CTM, TextGrids, HTK labels, Kaldi's phones per frame.

All become monophone states, three per phone.  If only phones are given, each is divided evenly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundelay.errors import DataError, suggest
from roundelay.formats import alignment_files
from roundelay.formats.text_tables import read_table
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.decision_tree import STATES, Tree
from roundelay.speech.language.lexicon import Lexicon

Piece = tuple[str, int]
"""A label and its number of frames."""
Pieces = Callable[[int], list[Piece]]
"""The labels of an utterance, once its number of frames is known."""

_SILENCES = {"", "sil", "sp", "spn", "silence", "pau", "<eps>", "h#", "_"}
_STATE = re.compile(r"^(?P<phone>.+?)(?:_s(?P<htk>[2-4])_\d+|\[(?P<bracketed>[2-4])\])$")
_POSITION = re.compile(r"_[BIES]$")


@dataclass(frozen=True)
class Grid:
    """When frames are: the seconds from one to the next, and the middle of the first."""

    shift: float
    middle: float

    def pieces(self, intervals: Iterable[alignment_files.Interval]) -> Pieces:
        """Label each frame by the interval that contains its middle, as silence if there is none."""
        intervals = list(intervals)

        def cut(num_frames: int) -> list[Piece]:
            bounds = [self._first(time, num_frames) for i in intervals for time in (i.begin, i.end)]
            labels = ["", *(label for i in intervals for label in (i.label, ""))]
            edges = [0, *np.maximum.accumulate(bounds).tolist(), num_frames]
            return [(label, b - a) for label, a, b in zip(labels, edges, edges[1:], strict=False) if b > a]

        return cut

    def _first(self, seconds: float, num_frames: int) -> int:
        """Return the first frame whose middle is not before a time."""
        return int(np.clip(np.ceil((seconds - self.middle) / self.shift - 1e-6), 0, num_frames))


def read(path: Path, grid: Grid) -> Iterator[tuple[str, Pieces]]:
    """Yield each utterance with its labels from a file of any format, or a folder of TextGrids or label files."""
    if path.is_dir():
        yield from _read_folder(path, grid)
    elif not path.is_file():
        raise DataError(f"{path}: no such file of alignments")
    elif path.suffix.lower() in (".ctm", ".mlf"):
        table = alignment_files.read_ctm(path) if path.suffix.lower() == ".ctm" else alignment_files.read_mlf(path)
        for name, intervals in table.items():
            yield name, grid.pieces(intervals)
    elif path.suffix.lower() == ".textgrid":
        yield path.stem, grid.pieces(_phones_tier(path))
    elif path.name.startswith("ali"):
        yield from _read_kaldi(path)
    else:
        for name, runs in alignment_files.read_runs(path):
            yield name, lambda _, runs=runs: runs  # type: ignore[misc]  # runs is bound now, not when it is called


def _read_folder(path: Path, grid: Grid) -> Iterator[tuple[str, Pieces]]:
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in (".textgrid", ".lab"))
    if not found:
        raise DataError(f"{path}: no .TextGrid or .lab file in it")
    for file in found:
        intervals = alignment_files.read_labels(file) if file.suffix.lower() == ".lab" else _phones_tier(file)
        yield file.stem, grid.pieces(intervals)


def _phones_tier(path: Path) -> list[alignment_files.Interval]:
    tiers = alignment_files.read_textgrid(path)
    for name, intervals in tiers.items():
        if name.split(" - ")[-1].lower() in ("phones", "phone", "phonemes"):
            return intervals
    raise DataError(f"{path}: no tier called phones; it has {', '.join(map(repr, tiers)) or 'none'}")


def _read_kaldi(path: Path) -> Iterator[tuple[str, Pieces]]:
    """Read phones per frame; transition ids cannot be read without Kaldi's model."""
    table = path.parent / "phones.txt"
    if not table.is_file():
        raise DataError(
            f"{path}: numbers mean nothing without phones.txt beside it; ali-to-phones --per-frame=true makes phones"
        )
    names = {number: name for name, number in read_table(table).items()}
    for utterance, values in alignment_files.read_ali([path]):
        cuts = np.flatnonzero(np.diff(values)) + 1
        parts = [part for part in np.split(values, cuts) if len(part)]
        for part in parts:
            if str(part[0]) not in names:
                raise DataError(f"{path}: {utterance} has phone {part[0]}, which phones.txt lacks")
        runs = [(names[str(part[0])], len(part)) for part in parts]
        yield utterance, lambda _, runs=runs: runs  # type: ignore[misc]  # as above


class Importer:
    """Turn labels into paths of monophone states."""

    def __init__(self, lexicon: Lexicon, where: Path) -> None:
        self._lexicon, self._where = lexicon, where
        self._phones: dict[str, tuple[int, int | None]] = {}
        self.tree = Tree.monophone(len(lexicon.phones))

    def path(self, utterance: str, words: Sequence[str], pieces: Pieces, num_frames: int) -> Alignment | str:
        """Return the alignment of an utterance, or the reason why there is none."""
        labels = pieces(num_frames)
        total = sum(frames for _, frames in labels)
        if total != num_frames:
            return f"{total} frames are aligned, but there are {num_frames}"
        phones, states, starts = [], [], []
        at, before = 0, (-1, STATES)
        for label, frames in labels:
            phone, state = self._look_up(label, utterance)
            if state is None or phone != before[0] or state < before[1]:
                phones.append(phone)
                starts.append(at)
            states += [state] * frames if state is not None else (np.arange(frames) * STATES // frames).tolist()
            before = (phone, STATES if state is None else state)
            at += frames
        found = Alignment(
            np.array(phones, np.int16), self._words(phones, words), np.array([*starts, at], np.int32),
            np.array(states, np.int8), np.zeros(0, np.int32),
        )  # fmt: skip
        return found.retie(self.tree)

    def _look_up(self, label: str, utterance: str) -> tuple[int, int | None]:
        """Return the phone's index, and its state if the label names one."""
        if label not in self._phones:
            match = _STATE.match(label)
            state = int(match["htk"] or match["bracketed"]) - 2 if match else None
            self._phones[label] = self._index(match["phone"] if match else label, utterance), state
        return self._phones[label]

    def _index(self, name: str, utterance: str) -> int:
        bare = _POSITION.sub("", name)
        if bare.lower() in _SILENCES:
            return 0
        for form in (name, bare, bare.upper(), bare.lower(), bare.rstrip("012"), bare.upper().rstrip("012")):
            if form in self._lexicon.phone_ids:
                return self._lexicon.phone_ids[form] - 1
        known = suggest(name, self._lexicon.phones)
        raise DataError(f"{self._where}: utterance {utterance} has a phone that the lexicon lacks: {known}")

    def _words(self, phones: Sequence[int], words: Sequence[str]) -> np.ndarray:
        """Return the word index of each phone, -1 for silence; all are -1 if the phones do not match the words."""
        result = np.full(len(phones), -1, np.int32)
        spoken = [(position, phone) for position, phone in enumerate(phones) if phone]
        cuts = self._cut([phone for _, phone in spoken], words)
        for word, (begin, end) in enumerate(itertools.pairwise(cuts)):
            for position, _ in spoken[begin:end]:
                result[position] = word
        return result

    def _cut(self, phones: list[int], words: Sequence[str]) -> list[int]:
        """Return the begin of each word among the phones, and the end; nothing if they do not match."""
        ids = self._lexicon.phone_ids
        reached: list[dict[int, int]] = [{0: 0}]  # after each word: position -> position before the word
        for word in words:
            ends: dict[int, int] = {}
            for begin in reached[-1]:
                for variant in self._lexicon.pronunciations.get(word, []):
                    end = begin + len(variant)
                    if phones[begin:end] == [ids[phone] - 1 for phone in variant]:
                        ends.setdefault(end, begin)
            reached.append(ends)
        if len(phones) not in reached[-1]:
            return []
        cuts = [len(phones)]
        for table in reversed(reached[1:]):
            cuts.append(table[cuts[-1]])
        return cuts[::-1]


def read_all(
    path: Path, importer: Importer, transcripts: Mapping[str, Sequence[str]], lengths: Mapping[str, int], grid: Grid
) -> Iterator[tuple[str, Alignment | str]]:
    """Yield the alignment of each utterance of ``transcripts``, or the reason why there is none; skip all others."""
    found = set()
    for utterance, pieces in read(path, grid):
        if utterance in transcripts and utterance not in found:
            found.add(utterance)
            yield utterance, importer.path(utterance, transcripts[utterance], pieces, lengths[utterance])
    for utterance in transcripts:
        if utterance not in found:
            yield utterance, f"not in {path.name}"

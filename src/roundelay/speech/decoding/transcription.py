"""Transcribe audio files of any length with a trained run: words and their times.

A long file is divided into windows that overlap, and each window is recognised separately.  In an overlap, words of the
first window are used up to a pause, and words of the second after it.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from roundelay.config import Positive, check_bounds, limits
from roundelay.corpora.data_directory import Utterance
from roundelay.errors import DataError, SettingsError
from roundelay.files import read_json
from roundelay.formats import audio_files
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.matching_features import FEATURES, make_matching_features
from roundelay.speech.decoding.network_scorer import open_run
from roundelay.speech.decoding.recogniser import RecognisedUtterance, RecognitionPlan, recognise
from roundelay.speech.decoding.split_decoding import DecodeSettings, choose_weights, grammar_for
from roundelay.speech.features.extraction import SILENT_PEAK, SOUNDS
from roundelay.speech.features.mel_features import num_frames
from roundelay.speech.worker_pool import WorkerPool

_log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
SUFFIXES = (".flac", ".mp3", ".ogg", ".sph", ".wav")
PAUSE = 0.5
"""Seconds without a word after which a new line of text begins."""


@dataclass(frozen=True)
class Windows:
    """Length and overlap of windows in seconds."""

    length: Annotated[float, limits(ge=1, largest=86_400)] = 30.0
    overlap: Positive = 4.0

    def __post_init__(self) -> None:
        check_bounds(self, "windows: ")
        if self.overlap > self.length / 2:
            raise SettingsError(
                f"windows: the overlap must be at most half the length, not {self.overlap:g} of {self.length:g} s"
            )

    def cut(self, seconds: float) -> list[tuple[float, float]]:
        """Divide a file into windows; the last may be shorter."""
        if seconds <= self.length:
            return [(0.0, seconds)]
        step = self.length - self.overlap
        count = math.ceil((seconds - self.overlap) / step)
        begins = [i * step for i in range(count)]
        return [(begin, min(begin + self.length, seconds)) for begin in begins]


@dataclass(frozen=True)
class Word:
    """A word and its begin and end in seconds."""

    word: str
    begin: float
    end: float

    @property
    def middle(self) -> float:
        """Return the time half-way."""
        return (self.begin + self.end) / 2


@dataclass(frozen=True)
class Transcript:
    """Words recognised in a file."""

    file: Path
    seconds: float
    words: list[Word] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the words."""
        return " ".join(word.word for word in self.words)

    def lines(self) -> list[list[Word]]:
        """Divide the words into lines at pauses."""
        lines: list[list[Word]] = []
        for word in self.words:
            if not lines or word.begin - lines[-1][-1].end > PAUSE:
                lines.append([])
            lines[-1].append(word)
        return lines


def find_audio(paths: Iterable[Path]) -> list[Path]:
    """List the given files, and the audio files in given folders."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not inside:
            raise DataError(f"{path}: no audio in it; audio files end in {' '.join(SUFFIXES)}")
        found += inside
    return found


def transcribe(
    run: Path, files: Sequence[Path], *, language: str | None = None, settings: DecodeSettings | None = None,
    windows: Windows | None = None, progress: Progress = lambda *_: None,
) -> list[Transcript]:  # fmt: skip
    """Transcribe files; each file is treated as one speaker when features are normalised and adapted."""
    settings, windows = settings or DecodeSettings(), windows or Windows()
    bundle = open_run(run)
    if bundle.given_features:
        raise DataError(f"{run}: trained on given features (feats.scp), which cannot be made from audio files")
    seconds = [_seconds(bundle, file) for file in files]
    cuts = [windows.cut(length) for length in seconds]
    utterances = [part for i, file in enumerate(files) for part in _parts(i, file, cuts[i], seconds[i])]
    with grammar_for(bundle, language, settings) as grammar, tempfile.TemporaryDirectory(prefix="roundelay-") as folder:
        tuned = choose_weights(bundle, grammar, settings, None, progress)
        inputs = make_matching_features(
            bundle, utterances, Path(folder), jobs=settings.jobs, resample=settings.resample, progress=progress
        )
        plan = RecognitionPlan(
            Path(run), grammar, (tuned.weights,), settings.pruning, times=True, priors=tuned.priors, sentences=True,
            device=settings.device,
        )  # fmt: skip
        with WorkerPool(settings.jobs) as workers:
            found = recognise(
                plan, inputs, [utterance.id for utterance in utterances], workers,
                lambda done, total: progress("decoding", done, total),
            )  # fmt: skip
            results = iter(list(found))
        silent = _silent(Path(folder))
    transcripts = []
    for i, (file, length, parts) in enumerate(zip(files, seconds, cuts, strict=True)):
        words = [_words(next(results), begin) for begin, _ in parts]
        quiet = [f"{i}-{k}" in silent for k in range(len(parts))]
        if all(quiet):
            _log.warning("%s: silent, no sample is above %g of full scale; no words", file, SILENT_PEAK)
        spoken = [[] if none else found for none, found in zip(quiet, words, strict=True)]
        transcripts.append(Transcript(file, length, join_windows(spoken, parts)))
    return transcripts


def _silent(folder: Path) -> set[str]:
    """Return the windows in which nothing is heard; in them, any words that the search finds are made up."""
    complaints = read_json(folder / FEATURES / SOUNDS)["complaints"]
    return {name for name, complaint in complaints.items() if complaint == "silent"}


def _seconds(bundle: Bundle, file: Path) -> float:
    """Return a file's length in seconds; raise if it is shorter than a frame, warn if it has several channels."""
    info, settings = audio_files.info(file), bundle.feature_settings
    if num_frames(int(info.seconds * settings.rate), settings) < 1:
        raise DataError(f"{file}: {info.seconds:.3f} s of audio; one frame needs {settings.frame_length_seconds} s")
    if info.channels > 1:
        _log.warning("%s: %d channels; only the first is transcribed", file, info.channels)
    return info.seconds


def _parts(number: int, file: Path, cuts: Sequence[tuple[float, float]], seconds: float) -> Iterator[Utterance]:
    for i, (begin, end) in enumerate(cuts):
        last = None if end >= seconds else end  # None reads to the end: the length may be rounded
        yield Utterance(f"{number}-{i}", file, str(number), (), begin=begin if begin else None, end=last)


def _words(found: RecognisedUtterance, offset: float) -> list[Word]:
    return [Word(w, begin + offset, end + offset) for w, (begin, end) in zip(found.words, found.times, strict=True)]


def join_windows(parts: Sequence[Sequence[Word]], cuts: Sequence[tuple[float, float]]) -> list[Word]:
    """Join the words of overlapping windows, without duplicates."""
    bounds = [float("-inf")]
    for (left, right), ((_, end), (begin, _)) in zip(pairwise(parts), pairwise(cuts), strict=True):
        bounds.append(find_joint([*left, *right], begin, end))
    bounds.append(float("inf"))
    spans = zip(parts, pairwise(bounds), strict=True)
    return [word for words, (low, high) in spans for word in words if low <= word.middle < high]


def find_joint(words: Iterable[Word], begin: float, end: float) -> float:
    """Return the middle of the longest pause in an overlap; the middle of the overlap if there is none."""
    free, longest, best = begin, 0.0, (begin + end) / 2
    inside = sorted((word.begin, word.end) for word in words if word.end > begin and word.begin < end)
    for first, last in [*inside, (end, end)]:
        if first - free > longest:
            longest, best = first - free, (first + free) / 2
        free = max(free, last)
    return best

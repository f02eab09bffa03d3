"""Inspect a corpus: report its contents, and all errors of its audio, not only the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.corpora.data_directory import Utterance, find_splits, read_split
from roundelay.errors import DataError
from roundelay.files import file_digest
from roundelay.formats import audio_files
from roundelay.formats.text_tables import read_lines, read_table

SILENT_DECIBELS = -60.0
"""A file whose loudest tenth of a second is below this is silent."""
CLIPPED_SHARE = 0.001
"""A file with more of its samples than this at full scale is clipped."""
_DURATION_SECONDS = 0.05

Progress = Callable[[int, int], None]


@dataclass
class SplitReport:
    """Contents of a split."""

    utterances: int = 0
    speakers: int = 0
    words: int = 0
    vocabulary: int = 0
    hours: float = 0.0
    shortest_seconds: float = 0.0
    longest_seconds: float = 0.0
    rates: dict[str, int] = field(default_factory=dict)
    """Utterances by the rate of their files in Hz."""
    unknown_words: int = 0
    """Number of different words that the corpus's lexicon lacks; 0 if there is no lexicon."""


@dataclass
class CorpusReport:
    """Contents of a corpus, errors (it cannot be used as it is) and warnings (it can)."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


@dataclass
class _Finding:
    """Result of reading one utterance."""

    seconds: float = 0.0
    rate: int = 0
    error: str = ""
    warning: str = ""


def inspect_corpus(
    folder: Path, *, headers_only: bool = False, jobs: int = 1, progress: Progress | None = None
) -> CorpusReport:
    """Read every split and every utterance's audio (or only the headers), and say what is there and what is wrong."""
    folder = Path(folder)
    report = CorpusReport()
    found = {name: read_split(path) for name, path in find_splits(folder).items()}
    total, done = sum(map(len, found.values())), 0
    lexicon = _lexicon(folder)
    with ThreadPoolExecutor(jobs) as pool:
        for name, utterances in found.items():
            findings = []
            look = _read_header if headers_only else _read_samples
            for finding in pool.map(look, utterances):
                findings.append(finding)
                done += 1
                if progress:
                    progress(done, total)
            report.splits[name] = _summary(utterances, findings, lexicon)
            report.errors += [finding.error for finding in findings if finding.error]
            report.warnings += [finding.warning for finding in findings if finding.warning]
            report.errors += _wrong_durations(find_splits(folder)[name], utterances, findings)
    report.warnings += list(_odd_rates(report.splits)) + list(_unknown(found, lexicon, folder))
    report.warnings += list(_shared_speakers(found, folder))
    if not headers_only:
        report.errors += list(_wrong_sums(folder))
    return report


def _read_header(utterance: Utterance) -> _Finding:
    try:
        info = audio_files.info(utterance.audio)
    except DataError as error:
        return _Finding(error=f"utterance {utterance.id!r}: {error}")
    end = info.seconds if utterance.end is None else min(utterance.end, info.seconds)
    return _Finding(max(0.0, end - (utterance.begin or 0.0)), info.rate)


def _read_samples(utterance: Utterance) -> _Finding:
    try:
        samples, rate = audio_files.read(
            utterance.audio, rate=None, channel=utterance.channel, begin=utterance.begin, end=utterance.end
        )
    except DataError as error:
        return _Finding(error=f"utterance {utterance.id!r}: {error}")
    finding = _Finding(len(samples) / rate, rate)
    step = max(1, rate // 10)
    padded = np.pad(samples, (0, -len(samples) % step)).reshape(-1, step)
    loudest = 10 * np.log10(float(np.max(np.mean(padded**2, axis=1))) + 1e-12)
    clipped = float(np.mean(np.abs(samples) >= 0.999))
    if loudest < SILENT_DECIBELS:
        finding.warning = f"utterance {utterance.id!r}: {utterance.audio} is silent ({loudest:.0f} dB at its loudest)"
    elif clipped > CLIPPED_SHARE:
        finding.warning = f"utterance {utterance.id!r}: {utterance.audio} is clipped ({clipped:.1%} of its samples)"
    return finding


def _summary(utterances: list[Utterance], findings: list[_Finding], lexicon: set[str]) -> SplitReport:
    words = Counter(word for utterance in utterances for word in utterance.words)
    seconds = [finding.seconds for finding in findings if not finding.error] or [0.0]
    return SplitReport(
        utterances=len(utterances),
        speakers=len({utterance.speaker for utterance in utterances}),
        words=sum(words.values()),
        vocabulary=len(words),
        hours=round(sum(seconds) / 3600, 4),
        shortest_seconds=round(min(seconds), 3),
        longest_seconds=round(max(seconds), 3),
        rates={str(rate): n for rate, n in sorted(Counter(f.rate for f in findings if not f.error).items())},
        unknown_words=len(set(words) - lexicon) if lexicon else 0,
    )


def _lexicon(folder: Path) -> set[str]:
    path = folder / "lexicon.txt"
    return {line.split()[0] for _, line in read_lines(path)} if path.is_file() else set()


def _unknown(found: dict[str, list[Utterance]], lexicon: set[str], folder: Path) -> Iterator[str]:
    words = {word for utterances in found.values() for utterance in utterances for word in utterance.words}
    if lexicon and (missing := sorted(words - lexicon)):
        shown = " ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
        yield f"{folder / 'lexicon.txt'}: {len(missing)} words have no pronunciation: {shown}"


def _wrong_durations(folder: Path, utterances: list[Utterance], findings: list[_Finding]) -> list[str]:
    """Compare with ``utt2dur``: a wrong rate in a header makes a file too long or too short."""
    table = folder / "utt2dur"
    if not table.is_file():
        return []
    told, wrong = read_table(table), []
    for utterance, finding in zip(utterances, findings, strict=True):
        try:
            seconds = float(told.get(utterance.id, "nan"))
        except ValueError:
            wrong.append(f"{table}: the duration of {utterance.id!r} is no number: {told[utterance.id]!r}")
            continue
        if not finding.error and abs(seconds - finding.seconds) > _DURATION_SECONDS:
            wrong.append(
                f"utterance {utterance.id!r}: {utterance.audio} has {finding.seconds:.2f} s and {table} says"
                f" {seconds:.2f}; perhaps the rate in its header, {finding.rate} Hz, is wrong"
            )
    return wrong


def _odd_rates(found: dict[str, SplitReport]) -> Iterator[str]:
    rates: Counter[str] = Counter()
    for split in found.values():
        rates.update(split.rates)
    if len(rates) > 1:
        parts = ", ".join(f"{count} at {rate} Hz" for rate, count in rates.most_common())
        yield f"files of different rates: {parts}; check their headers"


def _shared_speakers(found: dict[str, list[Utterance]], folder: Path) -> Iterator[str]:
    training = {utterance.speaker for utterance in found.get("train", ())}
    for name, utterances in found.items():
        shared = sorted({utterance.speaker for utterance in utterances} & training)
        if name != "train" and shared:
            yield f"{folder / name}: {len(shared)} of its speakers are in train too: {' '.join(shared[:5])}"


def _wrong_sums(folder: Path) -> Iterator[str]:
    sums = folder / "SHA256SUMS"
    for number, line in read_lines(sums) if sums.is_file() else ():
        digest, _, name = line.partition("  ")
        path = folder / name
        if not name or not path.is_file():
            yield f"{sums}:{number}: {name or line[:40]!r} is not there"
        elif file_digest(path) != digest:
            yield f"{path}: is not what SHA256SUMS says it was"

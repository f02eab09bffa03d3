"""Alignment files of other programs: CTM, TextGrid (of Praat and MFA), HTK labels, Kaldi's ``ali``, runs of states.

All times are converted to seconds.  Errors name the file and the line.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from roundelay.errors import DataError
from roundelay.files import write_text
from roundelay.formats.kaldi_archives import Integers, read_integers
from roundelay.formats.text_tables import read_lines

HTK_UNITS = 10_000_000
"""HTK counts in units of 100 ns."""


class Interval(NamedTuple):
    """A label with its begin and end in seconds."""

    begin: float
    end: float
    label: str


Alignment = list[Interval]


# Conversation time marks: utterance, channel, begin, duration, label


def read_ctm(path: Path) -> dict[str, Alignment]:
    """Read a CTM: each utterance's intervals in order of time."""
    found: dict[str, Alignment] = {}
    for number, line in read_lines(Path(path)):
        if line.startswith(";;"):
            continue
        fields = line.split()
        if len(fields) < 5:
            raise DataError(f"{path}:{number}: 'utterance channel begin duration label' is wanted, not {line[:60]!r}")
        begin, duration = _seconds(fields[2], path, number), _seconds(fields[3], path, number)
        found.setdefault(fields[0], []).append(Interval(begin, round(begin + duration, 6), fields[4]))
    for name, intervals in found.items():
        intervals.sort(key=lambda interval: (interval.begin, interval.end))
        _check_order(intervals, f"{path}: utterance {name!r}")
    return found


def write_ctm(path: Path, alignments: Mapping[str, Iterable[Interval]]) -> None:
    """Write a CTM, utterances sorted."""
    lines = [
        f"{name} 1 {begin:.4f} {end - begin:.4f} {label}\n"
        for name in sorted(alignments)
        for begin, end, label in alignments[name]
    ]
    write_text(Path(path), "".join(lines))


# Praat's TextGrid


def read_textgrid(path: Path) -> dict[str, Alignment]:
    """Read the interval tiers of a TextGrid, long or short: MFA's are ``words`` and ``phones``.

    Intervals without a label (silence) and tiers of points are left out.
    """
    tokens = _Tokens(Path(path))
    tokens.expect("ooTextFile", "ooTextFile short")
    tokens.expect("TextGrid")
    tokens.number()
    tokens.number()
    if tokens.word() != "<exists>":
        return {}
    found: dict[str, Alignment] = {}
    for _ in range(tokens.count()):
        kind, name = tokens.word(), tokens.word()
        tokens.number()
        tokens.number()
        size = tokens.count()
        if kind == "IntervalTier":
            if name in found:
                raise DataError(f"{path}: two tiers are called {name!r}")
            intervals = [Interval(tokens.number(), tokens.number(), tokens.word()) for _ in range(size)]
            _check_order(intervals, f"{path}: tier {name!r}")
            found[name] = [interval for interval in intervals if interval.label]
        elif kind == "TextTier":
            for _ in range(size):
                tokens.number()
                tokens.word()
        else:
            raise DataError(f"{path}: a tier of the unknown class {kind!r}")
    return found


def write_textgrid(path: Path, tiers: Mapping[str, Sequence[Interval]], duration: float) -> None:
    """Write a TextGrid in the long form; gaps become empty intervals, as Praat requires."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {duration:.6f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        filled = list(_filled(intervals, duration))
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += ["        xmin = 0", f"        xmax = {duration:.6f}", f"        intervals: size = {len(filled)}"]
        for i, (begin, end, label) in enumerate(filled, start=1):
            lines += [f"        intervals [{i}]:", f"            xmin = {begin:.6f}", f"            xmax = {end:.6f}"]
            lines += [f"            text = {_quoted(label)}"]
    write_text(Path(path), "\n".join(lines) + "\n")


def _filled(intervals: Sequence[Interval], duration: float) -> Iterator[Interval]:
    last = 0.0
    for interval in intervals:
        if interval.begin > last + 1e-6:
            yield Interval(last, interval.begin, "")
        yield interval
        last = interval.end
    if duration > last + 1e-6:
        yield Interval(last, duration, "")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


class _Tokens:
    """Iterate over the values of a TextGrid; the names and indices between them are redundant and skipped."""

    _VALUE = re.compile(
        r'"((?:[^"]|"")*)"|(<exists>|<absent>)|(?<![\w\[.])([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w\]])'
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values = self._VALUE.finditer(self._text())

    def _text(self) -> str:
        try:
            raw = self.path.read_bytes()
            encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            return raw.decode(encoding)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: neither UTF-8 nor UTF-16 (byte {error.start})") from error

    def _next(self) -> re.Match[str]:
        match = next(self._values, None)
        if match is None:
            raise DataError(f"{self.path}: truncated: the TextGrid breaks off")
        return match

    def word(self) -> str:
        """Return the next text or flag."""
        match = self._next()
        if match[3] is not None:
            raise DataError(f"{self.path}: text in quotes was expected at character {match.start()}, not {match[3]}")
        return match[2] if match[2] else match[1].replace('""', '"').strip()

    def expect(self, *texts: str) -> None:
        """Read a text and check that it is one of ``texts``."""
        if (found := self.word()) not in texts:
            raise DataError(f"{self.path}: not a TextGrid: {found[:40]!r} where {texts[0]!r} should be")

    def number(self) -> float:
        """Return the next number."""
        match = self._next()
        if match[3] is None:
            raise DataError(f"{self.path}: a number was expected at character {match.start()}, not {match[0][:40]}")
        return float(match[3])

    def count(self) -> int:
        """Return the next number as a count."""
        value = self.number()
        if not math.isfinite(value) or value < 0 or value != int(value):
            raise DataError(f"{self.path}: {value} is no count of tiers or intervals")
        return int(value)


# HTK: begin, end in units of 100 ns, label; a master label file contains many label files


def read_labels(path: Path) -> Alignment:
    """Read one HTK label file."""
    lines = [(number, line) for number, line in read_lines(Path(path)) if line != "///"]
    return _labels(lines, Path(path), str(path))


def read_mlf(path: Path) -> dict[str, Alignment]:
    """Read a master label file: map each utterance (file name without folder and suffix) to its intervals."""
    path = Path(path)
    lines = read_lines(path)
    if next(lines, (0, ""))[1] != "#!MLF!#":
        raise DataError(f"{path}:1: a master label file begins with #!MLF!#")
    found: dict[str, Alignment] = {}
    for number, line in lines:
        if not (line.startswith('"') and line.endswith('"') and len(line) > 2):
            raise DataError(f"{path}:{number}: the name of a label file in quotes was expected, not {line[:60]!r}")
        name = re.split(r"[/\\]", line[1:-1])[-1].rsplit(".", 1)[0]
        if name in found:
            raise DataError(f"{path}:{number}: utterance {name!r} comes twice")
        body = []
        for at, entry in lines:
            if entry == ".":
                break
            body.append((at, entry))
        else:
            raise DataError(f"{path}: truncated: the labels of {name!r} have no end")
        found[name] = _labels(body, path, f"{path}: utterance {name!r}")
    return found


def _labels(lines: Iterable[tuple[int, str]], path: Path, where: str) -> Alignment:
    found = []
    for number, line in lines:
        fields = line.split()
        if len(fields) < 3:
            raise DataError(f"{path}:{number}: 'begin end label' is wanted, not {line[:60]!r}")
        begin, end = (_seconds(field, path, number) / HTK_UNITS for field in fields[:2])
        found.append(Interval(begin, end, fields[2]))
    _check_order(found, where)
    return found


# Kaldi's alignments, and runs of states


def read_ali(paths: Iterable[Path]) -> Iterator[tuple[str, Integers]]:
    """Yield each utterance and its integers from ``ali.*.gz`` and the like, text or binary, file by file."""
    seen: dict[str, Path] = {}
    for path in paths:
        for name, values in read_integers(path):
            if name in seen:
                raise DataError(f"{path}: utterance {name!r} is in {seen[name]} already")
            seen[name] = path
            yield name, values


def read_runs(path: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield each utterance with its states and their numbers of frames: ``utterance state:frames state:frames ...``."""
    for number, line in read_lines(Path(path)):
        name, *fields = line.split()
        runs = []
        for field in fields:
            state, _, frames = field.rpartition(":")
            if not state or not frames.isascii() or not frames.isdigit() or len(frames) > 9 or int(frames) < 1:
                raise DataError(f"{path}:{number}: utterance {name!r}: {field[:40]!r} is not state:frames")
            runs.append((state, int(frames)))
        yield name, runs


def _seconds(field: str, path: Path, number: int) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{path}:{number}: {field[:40]!r} is not a time")
    return value


def _check_order(intervals: Sequence[Interval], where: str) -> None:
    """Raise if times run backwards; neighbours may share a boundary, or overlap by a rounding error."""
    for interval in intervals:
        if interval.end < interval.begin:
            raise DataError(f"{where}: {interval.label!r} ends at {interval.end:g} s, before it begins")
    for before, after in itertools.pairwise(intervals):
        if after.begin < before.end - 2e-3:
            raise DataError(f"{where}: {after.label!r} begins at {after.begin:g} s, inside {before.label!r}")

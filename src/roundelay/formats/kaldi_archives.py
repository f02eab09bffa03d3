"""Read Kaldi archives without Kaldi: feature matrices (plain or compressed) and integer vectors, binary or text.

``ali.1.gz`` of a Kaldi experiment holds transition-ids, a vector for each utterance; ``ali-to-pdf`` or ``ali-to-phones
--per-frame`` write states or phones in the same form.  ``feats.scp`` names a place in an archive for each utterance.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from roundelay.errors import DataError
from roundelay.files import open_plain
from roundelay.formats.compressed import decompressed
from roundelay.formats.text_tables import find_upwards, read_numbered

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Value = TypeVar("Value")
Kind = TypeVar("Kind", np.int32, np.float32)

_PIECE = 1 << 20
_LONGEST_KEY = 4096
_MOST_VALUES = 1 << 31


def read_integers(path: Path) -> Iterator[tuple[str, Integers]]:
    """Yield each utterance and its integers, in the order of the archive; ``.gz`` is unpacked on the way."""
    yield from _entries(Path(path), _integers)


def read_matrices(path: Path) -> Iterator[tuple[str, Floats]]:
    """Yield each utterance and its matrix (frames, features)."""
    yield from _entries(Path(path), _matrix)


def read_scp(path: Path) -> dict[str, tuple[Path, int]]:
    """Read an scp: map utterances to archive and position; relative paths count from its folder or a parent."""
    path = Path(path)
    found = {}
    for name, (entry, number) in read_numbered(path).items():
        if entry.startswith("|") or entry.endswith(("|", "]")):
            raise DataError(f"{path}:{number}: {entry!r}: only ARCHIVE:POSITION is read, neither commands nor ranges")
        archive, _, position = entry.rpartition(":")
        if not archive or not position.isascii() or not position.isdigit():
            raise DataError(f"{path}:{number}: {entry!r} does not say where in an archive {name!r} is")
        where = find_upwards(Path(archive), path.parent)
        if where is None:
            raise DataError(f"{path}:{number}: the archive of {name!r} is not there: {archive}")
        found[name] = where, int(position)
    return found


def read_matrix_at(archive: Path, position: int) -> Floats:
    """Read the matrix that begins at a position, as given by an scp."""
    with _opened(Path(archive)) as file:
        file.seek(position)
        return _matrix(_Reader(file, f"{archive}:{position}"))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open an archive; all errors of reading it are a DataError."""
    try:
        with open_plain(path) as raw:
            yield decompressed(raw, path)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _entries(path: Path, read: Callable[[_Reader], Value]) -> Iterator[tuple[str, Value]]:
    seen: set[str] = set()
    with _opened(path) as file:
        reader = _Reader(file, str(path))
        while (key := reader.key()) is not None:
            reader.where = f"{path}: utterance {key!r}"
            if key in seen:
                raise DataError(f"{path}: utterance {key!r} comes twice")
            seen.add(key)
            yield key, read(reader)
            reader.where = str(path)


class _Reader:
    """Read values of an archive; errors name the place."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where = file, where
        self.pushed = b""

    def exactly(self, num_bytes: int) -> bytes:
        """Read ``num_bytes`` bytes, in pieces: a damaged count may be larger than memory."""
        pieces, left = [], num_bytes
        while left > 0:
            piece = self.file.read(min(left, _PIECE))
            if not piece:
                raise DataError(f"{self.where}: truncated")
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def key(self) -> str | None:
        """Read up to the space that ends an utterance's id; None at the end of the archive."""
        raw = b""
        while (byte := self.file.read(1)) not in (b"", b" ", b"\t"):
            if byte == b"\n" and not raw:
                continue
            raw += byte
            if len(raw) > _LONGEST_KEY or byte == b"\n":
                raise DataError(f"{self.where}: not a Kaldi archive: {raw[:20]!r} is no utterance's id")
        if not raw and not byte:
            return None
        if not raw or not byte:
            raise DataError(f"{self.where}: truncated after {raw[:20]!r}")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where}: an utterance's id is not UTF-8: {raw[:20]!r}") from error

    def is_binary(self) -> bool:
        """Return whether a value is binary, and skip its mark."""
        byte = self.file.read(1)
        if byte == b"\0":
            if self.exactly(1) != b"B":
                raise DataError(f"{self.where}: damaged: the mark of a binary value is broken")
            return True
        self.pushed = byte
        return False

    def line(self) -> str:
        """Read the rest of a line of text."""
        raw, self.pushed = self.pushed + self.file.readline(), b""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where}: neither text nor a binary value") from error

    def number(self) -> int:
        """Read an integer with its size before it."""
        if self.exactly(1) != b"\x04":
            raise DataError(f"{self.where}: damaged: a 4-byte integer was expected")
        value: int = struct.unpack("<i", self.exactly(4))[0]
        return value

    def counted(self, *counts: int) -> int:
        """Check counts that are about to be read, and return their product."""
        total = 1
        for count in counts:
            total *= count
        if min(counts) < 0 or total > _MOST_VALUES:
            raise DataError(f"{self.where}: damaged: it would hold {' x '.join(map(str, counts))} values")
        return total


def _integers(reader: _Reader) -> Integers:
    if not reader.is_binary():
        return _parsed(reader, reader.line().split(), np.int32)
    count = reader.counted(reader.number())
    raw = np.frombuffer(reader.exactly(5 * count), np.uint8).reshape(count, 5)
    if (raw[:, 0] != 4).any():
        raise DataError(f"{reader.where}: damaged: not a vector of 4-byte integers")
    values: Integers = np.ascontiguousarray(raw[:, 1:]).view("<i4").reshape(count).astype(np.int32)
    return values


def _parsed(reader: _Reader, words: list[str], kind: type[Kind]) -> NDArray[Kind]:
    try:
        return np.array([kind(word) for word in words], kind)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{reader.where}: not numbers: {' '.join(words)[:40]!r}") from error


def _matrix(reader: _Reader) -> Floats:
    if not reader.is_binary():
        return _text_matrix(reader)
    token = reader.exactly(3)
    if token in (b"FM ", b"DM "):
        rows, columns = reader.number(), reader.number()
        width = 4 if token == b"FM " else 8
        raw = reader.exactly(width * reader.counted(rows, columns))
        values: Floats = np.frombuffer(raw, f"<f{width}").astype(np.float32).reshape(rows, columns)
        return values
    if token == b"CM ":
        return _compressed(reader, 1)
    if token in (b"CM2", b"CM3") and reader.exactly(1) == b" ":
        return _compressed(reader, int(token[2:]))
    raise DataError(f"{reader.where}: not a matrix: it begins with {token!r}")


def _text_matrix(reader: _Reader) -> Floats:
    first = reader.line().strip()
    if not first.startswith("["):
        raise DataError(f"{reader.where}: not a matrix: it begins with {first[:20]!r}")
    rows, line = [], first[1:]
    while True:
        body, end, _ = line.partition("]")
        if body.split():
            rows.append(_parsed(reader, body.split(), np.float32))
        if end:
            break
        line = reader.file.readline().decode("ascii", "replace")
        if not line:
            raise DataError(f"{reader.where}: truncated")
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"{reader.where}: the rows of the matrix are not of one length")
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def _compressed(reader: _Reader, method: int) -> Floats:
    """Undo Kaldi's compression: method 1 has four levels per column and one byte per value, 2 two bytes, 3 one byte."""
    least, span, rows, columns = struct.unpack("<ffii", reader.exactly(16))
    count = reader.counted(rows, columns)
    least, span = np.float32(least), np.float32(span)
    if method == 1:
        levels = np.frombuffer(reader.exactly(8 * columns), "<u2").reshape(columns, 4)
        codes = np.frombuffer(reader.exactly(count), np.uint8).reshape(columns, rows)
        return _decoded(least + span * np.float32(1 / 65535.0) * levels.astype(np.float32), codes)
    width, full = (2, 65535.0) if method == 2 else (1, 255.0)
    raw = np.frombuffer(reader.exactly(width * count), f"<u{width}").reshape(rows, columns)
    values: Floats = (least + raw.astype(np.float32) * (span * np.float32(1 / full))).astype(np.float32)
    return values


def _decoded(levels: Floats, codes: NDArray[np.uint8]) -> Floats:
    """Interpolate between the 0th, 25th, 75th and 100th percentile of each column."""
    low, first, third, high = (levels[:, i : i + 1] for i in range(4))
    code = codes.astype(np.float32)
    values = np.where(
        codes <= 64,
        low + (first - low) * code / 64,
        np.where(codes <= 192, first + (third - first) * (code - 64) / 128, third + (high - third) * (code - 192) / 63),
    )
    result: Floats = np.ascontiguousarray(values.T, np.float32)
    return result

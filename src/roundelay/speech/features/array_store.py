"""Arrays of many utterances in a few memory-mapped files.

A store is a folder.  ``shard-00000.raw`` and so on contain the rows of consecutive utterances.  ``index.json``, written
last, maps utterances to rows and has the checksum of every shard.  A folder without an index is no store, so partial
data are never read.  Values are raw little-endian numbers: reading them executes nothing.

When a shard is first read, a thread begins to compare it with its checksum (``digest_checks``).  If it is damaged, the
next read of the store raises, and so does ``finish_checks``, which is called before results are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError
from roundelay.files import data_errors, flush, read_json, write_json
from roundelay.speech.features import digest_checks

Array = npt.NDArray[Any]

INDEX = "index.json"
SHARD_SUFFIX = ".raw"
UTTERANCES_PER_SHARD = 128
_FORMAT = 1
_MAPPED_BYTES = 1 << 26
_DTYPES = ("float32", "float16", "int32", "int16")


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class _Index(msgspec.Struct):
    """Contents of ``index.json``."""

    format: int
    dtype: str
    dim: _Count
    ids: list[str]
    rows: list[_Count]
    shards: list[str]
    utterances: list[_Count]


def _read_index(path: Path) -> _Index:
    """Read an index; raise if it is inconsistent."""
    try:
        index = msgspec.convert(read_json(path), _Index)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not an index that this version reads: {str(error).lower()}") from None
    counts = (len(index.rows), sum(index.utterances), len(set(index.ids)))
    agree = all(count == len(index.ids) for count in counts) and len(index.shards) == len(index.utterances)
    if index.format != _FORMAT or index.dtype not in _DTYPES or not agree:
        raise DataError(f"{path}: not an index that this version reads")
    return index


@dataclass(frozen=True)
class ArrayShard:
    """One file of a store: its utterances in order, with their numbers of rows."""

    ids: list[str]
    rows: list[int]
    sha256: str


class ArrayStore(Mapping[str, Array]):
    """Read a store: a mapping from utterances to arrays (T, F), or (T,) if rows are single numbers.

    Arrays are read-only views of memory-mapped files: nothing is copied.  With ``private`` they are marked as writable,
    for code that requires it; changes do not reach the file or other readers, and are lost on ``release``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, private: bool = False) -> None:
        self.folder = Path(folder)
        self._private = private
        if not (self.folder / INDEX).is_file():
            raise DataError(f"{self.folder}: no complete store ({INDEX} is missing)")
        index = _read_index(self.folder / INDEX)
        self.dim: int = index.dim
        self.dtype = np.dtype(index.dtype)
        self.ids: list[str] = index.ids
        self.lengths: npt.NDArray[np.int64] = np.asarray(index.rows, np.int64)
        self._sums: list[str] = index.shards
        counts = np.asarray(index.utterances, np.int64)
        self.shards: npt.NDArray[np.int32] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        """Shard of each utterance."""
        before = np.concatenate([[0], np.cumsum(self.lengths)])
        first = before[np.concatenate([[0], np.cumsum(counts)])]  # rows before each shard
        self.starts: npt.NDArray[np.int64] = before[:-1] - first[self.shards]
        """First row of each utterance in its shard."""
        self._numbers = {name: i for i, name in enumerate(self.ids)}
        self._maps: dict[int, Array] = {}
        self._files: list[mmap.mmap] = []
        self._handed_out = 0
        self._checks, self._begun = digest_checks.FileChecks(), set[int]()
        self._check_sizes()

    def _check_sizes(self) -> None:
        width = self.dtype.itemsize * max(self.dim, 1)
        for shard in range(len(self._sums)):
            path = self.folder / shard_name(shard)
            expected = int(self.lengths[self.shards == shard].sum()) * width
            actual = path.stat().st_size if path.is_file() else -1
            if actual != expected:
                raise DataError(f"{path}: {max(actual, 0)} bytes instead of {expected}; {digest_checks.AGAIN}")

    def __getitem__(self, utterance: str) -> Array:
        number = self._numbers[utterance]
        start = int(self.starts[number])
        self._note(int(self.lengths[number]))
        return self.shard(int(self.shards[number]))[start : start + int(self.lengths[number])]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._numbers

    def length(self, utterance: str) -> int:
        """Return the number of rows of an utterance without reading it."""
        return int(self.lengths[self._numbers[utterance]])

    def index(self, utterance: str) -> int:
        """Return the index of an utterance in ``ids``, ``lengths``, ``shards`` and ``starts``."""
        return self._numbers[utterance]

    @property
    def num_rows(self) -> int:
        """Return the number of rows (frames) of all utterances."""
        return int(self.lengths.sum())

    def shard(self, number: int) -> Array:
        """Map a shard: all its rows, read-only; raise if one that was read before is damaged."""
        self._checks.look()
        mapped = self._maps.get(number)
        if mapped is None:
            self._begin_check(number)
            path = self.folder / shard_name(number)
            shape = (-1,) if self.dim == 0 else (-1, self.dim)
            if path.stat().st_size == 0:
                mapped = np.empty((0, *shape[1:]), self.dtype)
            else:
                with path.open("rb") as file:
                    access = mmap.ACCESS_COPY if self._private else mmap.ACCESS_READ
                    self._files.append(mmap.mmap(file.fileno(), 0, access=access))
                mapped = np.frombuffer(self._files[-1], self.dtype).reshape(shape)
            self._maps[number] = mapped
        return mapped

    def gather(self, numbers: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> Array:
        """Copy the rows at ``times`` (B, K) of utterances (B), given by index; times are clamped to the utterance."""
        rows = np.minimum(np.maximum(times, 0), self.lengths[numbers, None] - 1) + self.starts[numbers, None]
        result = np.empty(rows.shape if self.dim == 0 else (*rows.shape, self.dim), self.dtype)
        shards = self.shards[numbers]
        for shard in np.unique(shards):
            here = np.flatnonzero(shards == shard)
            if len(here) == len(rows):
                np.take(self.shard(int(shard)), rows, axis=0, out=result, mode="clip")
            else:
                result[here] = self.shard(int(shard))[rows[here]]
        return result

    def _note(self, rows: int) -> None:
        """Count the rows that are read, and release their memory pages after every 64 MB."""
        self._handed_out += rows * self.dtype.itemsize * max(self.dim, 1)
        if self._handed_out > _MAPPED_BYTES:
            self.release()

    def release(self) -> None:
        """Release the memory pages read so far.

        They stay in the operating system's cache, and views stay valid.  But they no longer count as memory of this
        process, so its memory does not grow with the amount of data.
        """
        self._handed_out = 0
        for file in list(self._files):
            file.madvise(mmap.MADV_DONTNEED)

    def _begin_check(self, number: int) -> None:
        """Begin to compare a shard with its checksum, unless that was done before."""
        if number not in self._begun:
            self._begun.add(number)
            self._checks.begin(self.folder / shard_name(number), self._sums[number], INDEX)

    def finish_checks(self) -> None:
        """Wait until all that was read so far has been compared with its checksum; raise if any is damaged."""
        self._checks.finish()

    def verify(self) -> None:
        """Read everything once and compare the checksums."""
        for number in range(len(self._sums)):
            self._begin_check(number)
        self.finish_checks()


def shard_name(number: int) -> str:
    """Name a shard's file."""
    return f"shard-{number:05d}{SHARD_SUFFIX}"


class _OpenShard:
    """A shard that is being written; it is not part of a store until an index names it."""

    def __init__(self, folder: Path, number: int, dtype: str) -> None:
        self._path = folder / shard_name(number)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._total = hashlib.sha256()
        self._file = self._path.open("wb")
        self.ids: list[str] = []
        self.rows: list[int] = []

    def add(self, utterance: str, array: Array) -> None:
        data = np.ascontiguousarray(array, self._dtype)
        self._total.update(data.data)
        with data_errors(self._path):
            self._file.write(data.data)
        self.ids.append(utterance)
        self.rows.append(len(data))

    def close(self) -> ArrayShard:
        try:
            with data_errors(self._path):
                self._file.close()
                flush(self._path)
        except DataError:
            self.abandon()
            raise
        return ArrayShard(self.ids, self.rows, self._total.hexdigest())

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)


def write_shard(folder: Path, number: int, dtype: str, arrays: Iterable[tuple[str, Array]]) -> ArrayShard:
    """Write one shard, array by array."""
    shard = _OpenShard(folder, number, dtype)
    try:
        for utterance, array in arrays:
            shard.add(utterance, array)
    except BaseException:
        shard.abandon()
        raise
    return shard.close()


def rewrite_shard(
    folder: Path, number: int, shard: ArrayShard, dim: int, change: Callable[[str, Array], Array]
) -> ArrayShard:
    """Change the arrays of a float32 shard in place; not for a shard that an index names."""
    path = folder / shard_name(number)
    total = hashlib.sha256()
    with data_errors(path), path.open("r+b") as file:
        for utterance, rows in zip(shard.ids, shard.rows, strict=True):
            begin = file.tell()
            data = np.frombuffer(file.read(4 * rows * dim), "<f4").reshape(rows, dim)
            data = np.ascontiguousarray(change(utterance, data), "<f4")
            total.update(data.data)
            file.seek(begin)
            file.write(data.data)
    flush(path)
    return ArrayShard(shard.ids, shard.rows, total.hexdigest())


def write_index(folder: Path, shards: Sequence[ArrayShard], dim: int, dtype: str) -> None:
    """Make a store of written shards; ``dim`` 0 means that rows are single numbers."""
    ids = [utterance for shard in shards for utterance in shard.ids]
    if len(set(ids)) != len(ids):
        raise DataError(f"{folder}: an utterance would be stored twice")
    index = {
        "format": _FORMAT,
        "dim": dim,
        "dtype": dtype,
        "ids": ids,
        "rows": [rows for shard in shards for rows in shard.rows],
        "utterances": [len(shard.ids) for shard in shards],
        "shards": [shard.sha256 for shard in shards],
    }
    write_json(folder / INDEX, index)


def make_empty_folder(folder: str | os.PathLike[str]) -> Path:
    """Make an empty folder for a store; an old store is removed, its index first."""
    folder = Path(folder)
    (folder / INDEX).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class StoreWriter:
    """Write a store array by array; it exists after ``close``, or after the ``with`` block if there was no error."""

    def __init__(self, folder: str | os.PathLike[str], *, dim: int, dtype: str = "float32") -> None:
        assert sys.byteorder == "little", "stores are mapped as they are"
        self.folder = make_empty_folder(folder)
        self._dim, self._dtype = dim, dtype
        self._shards: list[ArrayShard] = []
        self._open = _OpenShard(self.folder, 0, dtype)

    def add(self, utterance: str, array: Array) -> None:
        """Append an utterance's rows."""
        if len(self._open.ids) == UTTERANCES_PER_SHARD:
            self._shards.append(self._open.close())
            self._open = _OpenShard(self.folder, len(self._shards), self._dtype)
        self._open.add(utterance, array)

    def close(self) -> ArrayStore:
        """Write the index, which completes the store."""
        self._shards.append(self._open.close())
        write_index(self.folder, self._shards, self._dim, self._dtype)
        return ArrayStore(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._open.abandon()


def write_store(
    folder: str | os.PathLike[str], arrays: Iterable[tuple[str, Array]], *, dim: int, dtype: str = "float32"
) -> ArrayStore:
    """Write a store from an iterable of arrays; only one of them is in memory at a time."""
    with StoreWriter(folder, dim=dim, dtype=dtype) as writer:
        for utterance, array in arrays:
            writer.add(utterance, array)
    return ArrayStore(folder)

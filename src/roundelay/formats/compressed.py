"""Read compressed files of others in bounded memory: gzip, bzip2 and xz are recognised by their first bytes.

A few kilobytes can unpack to gigabytes.  So a file may unpack to a fixed number of bytes, and to some times its own
size: more than speech, text and tables ever need.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from roundelay.errors import DataError

ALLOWED_BYTES = 1 << 26
"""Bytes that any file may unpack to."""
ALLOWED_RATIO = 50
"""Bytes more for each byte of the packed file; text and tables are packed to a twentieth at best."""
LONGEST_READ_BYTES = 1 << 26
_PIECE = 1 << 16
_MEMORY_BYTES = 1 << 28
"""Memory that an xz file may ask for; ``xz -9`` asks for 65 MB."""


class UnpackedBytes:
    """The bytes that a packed file may still unpack to."""

    def __init__(self, path: Path, packed_bytes: int) -> None:
        self._path = path
        self._total = self._left = ALLOWED_BYTES + ALLOWED_RATIO * packed_bytes

    def spend(self, num_bytes: int) -> None:
        """Count unpacked bytes; raise if there are too many."""
        self._left -= num_bytes
        if self._left < 0:
            raise DataError(
                f"{self._path}: unpacks to more than {self._total >> 20} MB, more than {ALLOWED_RATIO} times its size; "
                f"if you trust it, unpack it yourself"
            )


def _decoder(start: bytes) -> Any:
    """Return a decoder for a file that begins so, None if it is not packed."""
    if start[:2] == b"\x1f\x8b":
        return zlib.decompressobj(31)
    if start[:3] == b"BZh":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor(memlimit=_MEMORY_BYTES) if start[:6] == b"\xfd7zXZ\0" else None


def decompressed(raw: BinaryIO, path: Path) -> BinaryIO:
    """Return a file that reads what ``raw`` unpacks to, or its bytes if it is not packed.

    It can be read and seeked; errors of a damaged file are raised as the decoders raise them.
    """
    start = raw.read(6)
    raw.seek(0)
    size = os.fstat(raw.fileno()).st_size
    if _decoder(start) is None:
        return raw  # a part cannot be longer than the file
    return cast("BinaryIO", _Bounded(_Unpacked(raw, UnpackedBytes(path, size)), path))


class _Bounded(io.BufferedReader):
    """A reader that refuses to read very much at once: a damaged or hostile header names any size."""

    def __init__(self, raw: io.RawIOBase, path: Path) -> None:
        super().__init__(raw, _PIECE)
        self._path = path

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LONGEST_READ_BYTES:
            raise DataError(f"{self._path}: damaged: one of its parts would have {size} bytes")
        return super().read(size)


class _Unpacked(io.RawIOBase):
    """Unpack piece by piece; going back begins again, which counts again."""

    def __init__(self, raw: BinaryIO, budget: UnpackedBytes) -> None:
        self._raw, self._budget = raw, budget
        self._restart()

    def _restart(self) -> None:
        self._raw.seek(0)
        self._input = self._raw.read(_PIECE)
        self._decoder, self._position = _decoder(self._input), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._some(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        self._budget.spend(len(data))
        return len(data)

    def _some(self, most: int) -> bytes:
        """Return up to ``most`` bytes, at least one unless the file ends."""
        while True:
            if self._decoder.eof and not self._next_stream():
                return b""
            if not self._input:
                self._input = self._raw.read(_PIECE)
            if data := self._decode(most):
                return data
            if not self._decoder.eof and not self._input and not self._more():
                raise EOFError("it is truncated")

    def _decode(self, most: int) -> bytes:
        if isinstance(self._decoder, bz2.BZ2Decompressor | lzma.LZMADecompressor):
            given, self._input = (self._input, b"") if self._decoder.needs_input else (b"", self._input)
            return self._decoder.decompress(given, most)
        data: bytes = self._decoder.decompress(self._input, most)
        # at the end, zlib has what follows in both, the tail and `unused_data`
        self._input = b"" if self._decoder.eof else self._decoder.unconsumed_tail
        return data

    def _more(self) -> bool:
        self._input = self._raw.read(_PIECE)
        return bool(self._input)

    def _next_stream(self) -> bool:
        """Begin the next of several packed files one after the other, if there is one; zeros at the end are allowed."""
        self._input = (self._decoder.unused_data + self._input).lstrip(b"\0") or self._raw.read(_PIECE).lstrip(b"\0")
        if not self._input:
            return False
        if len(self._input) < 6:
            self._input += self._raw.read(_PIECE)
        self._decoder = _decoder(self._input)
        if self._decoder is None:
            raise EOFError("something else follows what is packed")
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            raise io.UnsupportedOperation("the end of a packed file is not known")
        target = offset if whence == os.SEEK_SET else self._position + offset
        if target < self._position:
            self._restart()
        while self._position < target and (data := self._some(min(target - self._position, _PIECE))):
            self._position += len(data)
            self._budget.spend(len(data))
        return self._position

    def tell(self) -> int:
        return self._position

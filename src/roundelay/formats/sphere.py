"""Read NIST SPHERE files, PCM and mu-law: a text header of 1024 bytes or more, then samples, channels interleaved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roundelay.errors import DataError

MAGIC = b"NIST_1A\n"
_LONGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class SphereHeader:
    """The format of the samples; ``frames`` counts samples of one channel."""

    rate: int
    channels: int
    frames: int
    coding: str
    """pcm or ulaw."""
    order: str
    """Byte order: ``<`` or ``>``."""
    size_bytes: int
    """Size of the header: the samples begin there."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * (2 if self.coding == "pcm" else 1)


def read_header(path: Path) -> SphereHeader:
    """Read a header; raise if it is wrong or samples are missing."""
    fields, size = _fields(path)
    coding = _coding(path, fields)
    width = 2 if coding == "pcm" else 1
    if (given := _count(path, fields, "sample_n_bytes", width, 8)) != width:
        raise DataError(f"{path}: {coding} samples of {given} bytes; use {width}")
    rate = _count(path, fields, "sample_rate", None, 1_000_000)
    channels = _count(path, fields, "channel_count", 1, 1024)
    there = (path.stat().st_size - size) // (channels * width)
    frames = _count(path, fields, "sample_count", there, 1 << 40)
    if frames > there:
        raise DataError(f"{path}: truncated: the header promises {frames} samples and {there} are there")
    order = ">" if fields.get("sample_byte_format") == "10" else "<"
    return SphereHeader(rate, channels, frames, coding, order, size)


def read_samples(path: Path, header: SphereHeader, *, begin: int, end: int, channel: int) -> NDArray[np.float32]:
    """Read the samples of one channel from frame ``begin`` up to ``end``, scaled to [-1, 1]."""
    kind = np.dtype("u1" if header.coding == "ulaw" else f"{header.order}i2")
    with path.open("rb") as file:
        file.seek(header.size_bytes + begin * header.frame_bytes)
        raw = file.read((end - begin) * header.frame_bytes)
    if len(raw) < (end - begin) * header.frame_bytes:
        raise DataError(f"{path}: truncated while it was read")
    samples = np.frombuffer(raw, kind)[channel :: header.channels]
    if header.coding == "ulaw":
        decoded: NDArray[np.float32] = _ulaw_values()[samples]
        return decoded
    scaled: NDArray[np.float32] = samples.astype(np.float32) / np.float32(32768.0)
    return scaled


@cache
def _ulaw_values() -> NDArray[np.float32]:
    """Tabulate G.711: the bits are inverted, then sign, 3 bits of exponent and 4 of mantissa with a bias of 33 x 4."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768.0).astype(np.float32)


def _fields(path: Path) -> tuple[dict[str, str], int]:
    with path.open("rb") as file:
        start = file.read(16)
        try:
            size = int(start[len(MAGIC) :].strip() or b"0") if start.startswith(MAGIC) else 0
        except ValueError:
            size = 0
        if not 16 <= size <= _LONGEST_HEADER:
            raise DataError(f"{path}: not a NIST SPHERE file: it begins with {start[:16]!r}")
        text = file.read(size - 16)
    if len(text) < size - 16:
        raise DataError(f"{path}: truncated inside its header")
    body, mark, _ = text.partition(b"end_head")
    if not mark:
        raise DataError(f"{path}: the SPHERE header has no end_head")
    fields = {}
    for line in body.decode("latin-1").splitlines():
        parts = line.split(None, 2)
        if len(parts) == 3:
            fields[parts[0]] = parts[2].strip()
    return fields, size


def _coding(path: Path, fields: dict[str, str]) -> str:
    coding = fields.get("sample_coding", "pcm")
    if "shorten" in coding:
        raise DataError(f"{path}: compressed by shorten: not supported; unpack it with 'sph2pipe -f wav IN OUT'")
    known = {"pcm": "pcm", "ulaw": "ulaw", "mu-law": "ulaw", "mulaw": "ulaw"}
    if coding not in known:
        raise DataError(f"{path}: SPHERE coding {coding!r}; only pcm and ulaw are read")
    return known[coding]


def _count(path: Path, fields: dict[str, str], name: str, default: int | None, most: int) -> int:
    given = fields.get(name, default)
    if given is None:
        raise DataError(f"{path}: the SPHERE header has no {name}")
    try:
        value = int(float(given))
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path}: {name} in the SPHERE header is {given!r}, not a number") from error
    if not 0 < value <= most and not (name == "sample_count" and value == 0):
        raise DataError(f"{path}: {name} in the SPHERE header is {given}")
    return value

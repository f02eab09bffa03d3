"""Read samples of audio files: wav, flac, ogg, mp3 and NIST SPHERE, at any rate, one channel, whole or in part."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.errors import DataError, import_extra
from roundelay.formats import sphere

OVERSHOOT_SECONDS = 0.5
"""How far a segment may reach beyond the end of its file, since transcribers round times; the rest is cut off."""
_LOWEST_RATE, _HIGHEST_RATE = 1000, 768_000


@dataclass(frozen=True)
class Info:
    """Rate, channels and length from a file's header; ``frames`` counts samples of one channel."""

    rate: int
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        """How long the file is."""
        return self.frames / self.rate


def read(
    path: Path, *, rate: int | None = 16000, channel: int = 0, begin: float | None = None, end: float | None = None
) -> tuple[NDArray[np.float32], int]:
    """Read one channel, from ``begin`` to ``end`` seconds, as samples in [-1, 1] at ``rate`` (None: the file's own)."""
    path = Path(path)
    _look(path)
    source = sphere.read_header(path) if _is_sphere(path) else _open(path)
    try:
        info = _checked(path, source)
        if channel not in range(info.channels):
            raise DataError(f"{path}: channel {channel} is asked for (0 is the first) and there are {info.channels}")
        first, last = _span(path, info, begin, end)
        if isinstance(source, sphere.SphereHeader):
            samples = sphere.read_samples(path, source, begin=first, end=last, channel=channel)
        else:
            samples = _samples(path, source, first, last)[:, channel]
    finally:
        if not isinstance(source, sphere.SphereHeader):
            source.close()
    if not np.isfinite(samples).all():
        raise DataError(f"{path}: samples that are not finite numbers")
    return _resampled(samples, info.rate, rate), rate or info.rate


def info(path: Path) -> Info:
    """Read a file's rate, channels and number of frames; raise if the header shows that it is truncated."""
    path = Path(path)
    _look(path)
    if _is_sphere(path):
        return _checked(path, sphere.read_header(path))
    with _open(path) as source:
        return _checked(path, source)


def _look(path: Path) -> None:
    """Raise if a path is missing, no file, empty, or without a header."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no such audio file") from error
    if not path.is_file():
        raise DataError(f"{path}: not a file")
    if size == 0:
        raise DataError(f"{path}: empty audio file (0 bytes); leave it out")
    if path.suffix.lower() == ".raw":
        raise DataError(f"{path}: raw samples have no header; convert them to wav or flac")


def _is_sphere(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(sphere.MAGIC)) == sphere.MAGIC


def _open(path: Path) -> Any:
    soundfile = import_extra("soundfile", "speech")
    _check_container(path)
    try:
        return soundfile.SoundFile(path)
    except (soundfile.LibsndfileError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not audio that can be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).strip().rstrip(".")


def _checked(path: Path, source: Any) -> Info:
    """Take the three numbers from a SPHERE header or an open sound file."""
    rate = source.rate if isinstance(source, sphere.SphereHeader) else source.samplerate
    found = Info(int(rate), int(source.channels), int(source.frames))
    if not _LOWEST_RATE <= found.rate <= _HIGHEST_RATE:
        raise DataError(f"{path}: the header gives a rate of {found.rate} Hz; use {_LOWEST_RATE} to {_HIGHEST_RATE} Hz")
    if found.frames <= 0 or found.frames >= 1 << 40:
        raise DataError(f"{path}: no samples in it; leave it out")
    return found


def _span(path: Path, info: Info, begin: float | None, end: float | None) -> tuple[int, int]:
    """Convert seconds to frames inside the file."""
    if not math.isfinite(begin or 0.0) or not math.isfinite(end or 0.0):
        raise DataError(f"{path}: a segment from {begin} s to {end} s")
    first = round((begin or 0.0) * info.rate)
    last = info.frames if end is None else round(end * info.rate)
    if first < 0 or (last <= first and first < info.frames):
        raise DataError(f"{path}: a segment from {begin} s to {end} s has no samples")
    if first >= info.frames or last > info.frames + OVERSHOOT_SECONDS * info.rate:
        raise DataError(f"{path}: a segment from {begin or 0:g} s to {end} s of a file of {info.seconds:.3f} s")
    return first, min(last, info.frames)


def _samples(path: Path, source: Any, first: int, last: int) -> NDArray[np.float32]:
    soundfile = import_extra("soundfile", "speech")
    try:
        if first:
            source.seek(first)
        samples: NDArray[np.float32] = source.read(last - first, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise DataError(f"{path}: damaged or truncated ({_reason(error)})") from error
    if len(samples) < last - first:
        raise DataError(f"{path}: truncated: {last - first} samples are promised and {len(samples)} could be read")
    return samples


def _resampled(samples: NDArray[np.float32], given: int, wanted: int | None) -> NDArray[np.float32]:
    if wanted is None or wanted == given:
        return np.ascontiguousarray(samples)
    result: NDArray[np.float32] = import_extra("soxr", "speech").resample(np.ascontiguousarray(samples), given, wanted)
    return result


def _check_container(path: Path) -> None:
    """Find errors that libsndfile ignores: a truncated wav or ogg, an inconsistent wav header."""
    with path.open("rb") as file:
        start = file.read(12)
        if start[:4] == b"RIFF" and start[8:] == b"WAVE":
            _check_wav(path, file)
        elif start[:4] == b"OggS":
            _check_ogg(path, file)


def _check_wav(path: Path, file: Any) -> None:
    size = path.stat().st_size
    while len(head := file.read(8)) == 8:
        name, length = struct.unpack("<4sI", head)
        here = file.tell()
        if name == b"fmt ":
            _check_format(path, file.read(min(length, 16)))
        if name == b"data":
            # a program that writes to a pipe leaves 0 or the largest number: the samples end with the file
            if length not in (0, 0x7FFFFFFF, 0x7FFFFFFE) and length < 0xFFFFFF00 and here + length > size:
                raise DataError(
                    f"{path}: truncated: {length} bytes of samples are promised and {size - here} are there"
                )
            return
        file.seek(here + length + length % 2)
    raise DataError(f"{path}: truncated: a wav file without samples")


def _check_format(path: Path, chunk: bytes) -> None:
    if len(chunk) < 16:
        raise DataError(f"{path}: truncated inside its header")
    kind, channels, rate, bytes_per_second, block, bits = struct.unpack("<HHIIHH", chunk)
    linear = kind in (1, 3, 0xFFFE)
    if linear and (channels == 0 or block != channels * ((bits + 7) // 8)):
        raise DataError(f"{path}: the header is wrong: {channels} channels of {bits} bits in blocks of {block} bytes")
    if linear and bytes_per_second not in (0, rate * block):
        raise DataError(
            f"{path}: the header contradicts itself: {rate} Hz, but {bytes_per_second} bytes per second,"
            f" which is {bytes_per_second / block:g} Hz"
        )


def _check_ogg(path: Path, file: Any) -> None:
    """Check that the last page is complete and marks the end of the stream."""
    size = path.stat().st_size
    file.seek(max(0, size - 2 * 65536))
    tail = file.read()
    at = tail.rfind(b"OggS")
    page = tail[at:] if at >= 0 else b""
    whole = len(page) >= 27 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
    if not whole or not page[5] & 4:
        raise DataError(f"{path}: truncated: the ogg stream has no end")

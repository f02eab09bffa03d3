"""Draw an utterance as SVG: waveform, features, phones and words over one time axis.

The file is self-contained: the features are an embedded PNG, and no script or font is loaded.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from roundelay.speech.language.lexicon import SILENCE

Array = npt.NDArray[np.float32]
Span = tuple[str, float, float]
"""A label with its begin and end in seconds."""

_LEFT, _RIGHT, _PIXELS_PER_SECOND, _LEAST = 70, 20, 260.0, 480.0
_WAVE, _HEAT, _ROW, _GAP = 90, 160, 24, 10
_FONT = "font-family='Helvetica,Arial,sans-serif'"
_DARK, _MIDDLE, _BRIGHT = (13, 8, 60), (190, 50, 90), (252, 238, 170)


@dataclass(frozen=True)
class Picture:
    """Contents of a picture: samples in [-1, 1], features (T, F) with their frame shift, phones and words."""

    title: str
    samples: Array
    rate: int
    features: Array
    frame_shift_seconds: float
    phones: Sequence[Span]
    words: Sequence[Span]
    offset: float = 0.0
    """Seconds from the first sample to the begin of the first frame as drawn."""

    @property
    def seconds(self) -> float:
        """Return the length of the time axis."""
        return max(len(self.samples) / self.rate, len(self.features) * self.frame_shift_seconds, 0.01)


def draw(picture: Picture) -> str:
    """Return the picture as the text of an SVG file."""
    scale = max(_PIXELS_PER_SECOND, _LEAST / picture.seconds)
    width = _LEFT + picture.seconds * scale + _RIGHT
    top = 34.0
    rows = [f"<text x='{_LEFT}' y='20' font-size='14' font-weight='bold' {_FONT}>{escape(picture.title)}</text>"]
    rows += _waveform(picture, scale, top)
    wave_top, top = top, top + _WAVE + _GAP
    rows += _features(picture, scale, top)
    top += _HEAT + _GAP
    for name, spans in (("phones", picture.phones), ("words", picture.words)):
        rows += _spans(name, spans, scale, top)
        top += _ROW + 4
    rows += _boundaries(picture, scale, wave_top, top)
    rows += _axis(picture.seconds, scale, top)
    height = top + 34
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}'><rect width='100%' height='100%' fill='white'/>"
    )
    return "\n".join([head, *rows, "</svg>"]) + "\n"


def _label(text: str, top: float, height: float) -> str:
    middle = top + height / 2 + 4
    return f"<text x='{_LEFT - 8}' y='{middle:.1f}' font-size='11' text-anchor='end' fill='#444' {_FONT}>{text}</text>"


def _waveform(picture: Picture, scale: float, top: float) -> list[str]:
    """Draw the smallest and largest sample of each pixel column."""
    columns = max(1, round(picture.seconds * scale))
    edges = np.linspace(0, picture.seconds * picture.rate, columns + 1).astype(int).clip(0, len(picture.samples))
    loudest = max(float(np.abs(picture.samples).max(initial=0.0)), 1e-4)
    upper: list[str] = []
    lower: list[str] = []
    for x, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        part = picture.samples[begin : max(end, begin + 1)]
        if not len(part):
            break
        for points, value in ((upper, part.max()), (lower, part.min())):
            points.append(f"{_LEFT + x},{top + _WAVE / 2 * (1 - float(value) / loudest):.1f}")
    outline = " ".join(upper + lower[::-1])
    middle = top + _WAVE / 2
    return [
        _label("waveform", top, _WAVE),
        f"<line x1='{_LEFT}' x2='{_LEFT + columns}' y1='{middle}' y2='{middle}' stroke='#ccc'/>",
        f"<polygon points='{outline}' fill='#2b5c8a' stroke='#2b5c8a' stroke-width='0.6'/>",
    ]


def _features(picture: Picture, scale: float, top: float) -> list[str]:
    """Draw one pixel per value, low frequencies below, stretched to the time axis."""
    width = len(picture.features) * picture.frame_shift_seconds * scale
    image = base64.b64encode(png(colours(picture.features.T[::-1]))).decode() if len(picture.features) else ""
    return [
        _label("features", top, _HEAT),
        f"<image x='{_LEFT + picture.offset * scale:.1f}' y='{top}' width='{width:.1f}' height='{_HEAT}' "
        f"preserveAspectRatio='none' style='image-rendering:pixelated' href='data:image/png;base64,{image}'/>",
    ]


def _spans(name: str, spans: Sequence[Span], scale: float, top: float) -> list[str]:
    rows = [_label(name, top, _ROW)]
    for i, (text, begin, end) in enumerate(spans):
        x, width = _LEFT + begin * scale, (end - begin) * scale
        fill = "#f2f2f2" if text == SILENCE else ("#d7e8f7", "#fbe6cf")[i % 2]
        rows.append(
            f"<rect x='{x:.1f}' y='{top:.1f}' width='{width:.1f}' height='{_ROW}' fill='{fill}' stroke='#888' "
            f"stroke-width='0.5'><title>{escape(text)} {begin:.2f}-{end:.2f} s</title></rect>"
        )
        size = min(12.0, 1.5 * width / max(len(text), 1))
        if size >= 5:
            rows.append(
                f"<text x='{x + width / 2:.1f}' y='{top + _ROW / 2 + size / 3:.1f}' font-size='{size:.1f}' "
                f"text-anchor='middle' {_FONT}>{escape(text)}</text>"
            )
    return rows


def _boundaries(picture: Picture, scale: float, top: float, bottom: float) -> list[str]:
    """Draw a line through waveform and features at each word's begin and end."""
    times = sorted({time for _, begin, end in picture.words for time in (begin, end)})
    return [
        f"<line x1='{_LEFT + time * scale:.1f}' x2='{_LEFT + time * scale:.1f}' y1='{top}' y2='{bottom}' "
        "stroke='#000' stroke-opacity='0.35' stroke-dasharray='3 3' stroke-width='0.8'/>"
        for time in times
    ]


def _axis(seconds: float, scale: float, top: float) -> list[str]:
    step = next((s for s in (0.1, 0.2, 0.5, 1.0, 2.0) if s * scale >= 50), 5.0)
    rows = []
    for i in range(int(seconds / step) + 1):
        x = _LEFT + i * step * scale
        rows.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{top + 5}' stroke='#444'/>")
        rows.append(
            f"<text x='{x:.1f}' y='{top + 18}' font-size='11' text-anchor='middle' fill='#444' {_FONT}>"
            f"{i * step:g} s</text>"
        )
    return rows


def colours(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Turn values (H, W) into colours (H, W, 3), dark to bright between their 1st and 99th percentile."""
    low, high = np.percentile(values, [1, 99])
    share = ((values - low) / max(high - low, 1e-9)).clip(0, 1)[..., None]
    dark, middle, bright = (np.array(colour, np.float64) for colour in (_DARK, _MIDDLE, _BRIGHT))
    mixed = np.where(share < 0.5, dark + (middle - dark) * 2 * share, middle + (bright - middle) * (2 * share - 1))
    return np.asarray(mixed, np.uint8)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode colours (H, W, 3) as a PNG."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)

"""Pictures of utterances: SVG and PNG by hand."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
import zlib

import numpy as np

from roundelay.speech.preparation.utterance_picture import Picture, colours, draw, png


def test_picture_escapes_and_survives_nothing() -> None:
    empty = Picture("<&>", np.zeros(0, np.float32), 16000, np.zeros((0, 4), np.float32), 0.01, [], [])
    assert ET.fromstring(draw(empty)).tag.endswith("svg")


def test_png_holds_the_pixels() -> None:
    pixels = colours(np.linspace(0, 1, 12).reshape(3, 4))
    data = png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = data.index(b"IDAT")
    rows = zlib.decompress(data[at + 4 : at + 4 + int.from_bytes(data[at - 4 : at], "big")])
    assert rows == b"".join(b"\0" + row.tobytes() for row in pixels)
    assert tuple(pixels[0, 0]) == (13, 8, 60)
    assert base64.b64encode(data)

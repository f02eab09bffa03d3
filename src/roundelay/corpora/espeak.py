"""espeak-ng through ctypes: turn text into samples, and words and phonemes with their times.

The library keeps state between utterances, so the same sentence differs a little the second time.  To get the same
samples again, speak the same sentences in the same order in a new process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.errors import DataError, import_extra

_SYNCHRONOUS, _PHONEME_EVENTS, _NO_EXIT = 2, 1, 0x8000
_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_WORD, _PHONEME = 1, 7


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user", ctypes.c_void_p),
        ("id", _Id),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True)
class Voice:
    """A voice: accent and variant such as ``en-us+m3``; rate in words per minute, pitch and range 0 to 100."""

    name: str
    rate: int
    pitch: int
    range: int


@dataclass
class SpokenText:
    """A spoken text: samples of 16 bits, and the begin of each word and phoneme in samples."""

    samples: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    words: list[int] = field(default_factory=list)
    phonemes: list[tuple[int, str]] = field(default_factory=list)
    """Begin and espeak's symbol of each phoneme, in order of time."""
    owners: list[int] = field(default_factory=list)
    """For each phoneme, the index of its word."""


class Espeak:
    """The synthesiser.  The library has global state: make only one per process."""

    def __init__(self) -> None:
        espeakng_loader = import_extra("espeakng_loader", "synthetic")
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._library.espeak_Info.restype = ctypes.c_char_p
        data = str(Path(espeakng_loader.get_data_path()).parent).encode()
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, _PHONEME_EVENTS | _NO_EXIT)
        if self.rate <= 0:
            raise DataError(f"espeak-ng does not start with its data in {data.decode()}")
        self._pieces: list[NDArray[np.int16]] = []
        self._spoken = SpokenText()
        self._callback = _CALLBACK(self._collect)  # must stay alive: the library has only its address
        self._library.espeak_SetSynthCallback(self._callback)

    @property
    def version(self) -> str:
        """The library's version."""
        text: bytes = self._library.espeak_Info(None)
        return text.decode().split()[0]

    def say(self, voice: Voice, text: str) -> SpokenText:
        """Speak a text."""
        self._pieces, self._spoken = [], SpokenText()
        # the library ignores an unknown variant without an error, so use only names known to work
        if self._library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise DataError(f"espeak-ng has no voice {voice.name!r}")
        for parameter, value in ((_RATE, voice.rate), (_PITCH, voice.pitch), (_RANGE, voice.range)):
            self._library.espeak_SetParameter(parameter, value, 0)
        raw = text.encode()
        self._library.espeak_Synth(raw, ctypes.c_size_t(len(raw) + 1), 0, 0, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        self._spoken.samples = np.concatenate([np.zeros(0, np.int16), *self._pieces])
        return self._spoken

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        position = 0
        while (event := events[position]).type != 0:
            if event.type == _WORD:
                self._spoken.words.append(event.sample)
            elif event.type == _PHONEME:
                symbol = ctypes.string_at(ctypes.addressof(event.id), 8).split(b"\0")[0].decode()
                self._spoken.phonemes.append((event.sample, symbol))
                self._spoken.owners.append(len(self._spoken.words) - 1)
            position += 1
        return 0

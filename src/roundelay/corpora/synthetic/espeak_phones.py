"""Translate espeak-ng's English phonemes into the phones of the synthetic corpus.

The phones are the ARPABET of the CMU dictionary without stress (39), and beside them ``AX`` (schwa), ``AXR`` (the end
of *number*), ``EL`` (of *April*), ``DX`` (the flapped t of American *eighty*), and the vowels that espeak-ng makes in
one piece with an r, or with the lengthening that stands for it in British accents: ``AR`` (*march*), ``OR`` (*four*),
``IR`` (*zero*), ``AIR`` (American *January*).  ``SIL`` is a pause.
"""

from __future__ import annotations

from dataclasses import dataclass

from roundelay.corpora.espeak import SpokenText
from roundelay.errors import DataError

SILENCE = "SIL"

_PHONES = {
    "p": "P", "b": "B", "t": "T", "t2": "T", "t#": "DX", "d": "D", "k": "K", "g": "G", "tS": "CH", "dZ": "JH",
    "f": "F", "v": "V", "T": "TH", "D": "DH", "s": "S", "z": "Z", "S": "SH", "Z": "ZH", "h": "HH",
    "m": "M", "n": "N", "N": "NG", "l": "L", "r": "R", "w": "W", "j": "Y", "?": "T",
    "i:": "IY", "i": "IY", "I": "IH", "I2": "IH", "I#": "IH", "E": "EH", "E2": "EH", "a": "AE", "aa": "AE",
    "A:": "AA", "0": "AA", "0#": "AA", "O:": "AO", "O": "AO", "O2": "AO", "V": "AH", "U": "UH", "u:": "UW", "u": "UW",
    "@": "AX", "@2": "AX", "@-": "AX", "a#": "AX", "@5": "AX", "3": "AXR", "3:": "ER", "VR": "ER", "IR": "ER",
    "@L": "EL", "eI": "EY", "aI": "AY", "aI2": "AY", "OI": "OY", "oU": "OW", "aU": "AW",
    "A@": "AR", "o@": "OR", "O@": "OR", "i@": "IR", "i@3": "IR", "I@": "IR", "e@": "AIR",
}  # fmt: skip
_MARKS = {";", "r-"}
"""Glides that belong to no word: their time is added to the phone before them."""
_STRESS = "',%=|"

CLOSED = frozenset({"P", "T", "K", "CH", "JH"})
"""Phones that begin with a closure; espeak-ng adds the closure to the sound before them."""


@dataclass(frozen=True)
class Phone:
    """A phone with its begin and end in samples; ``word`` is the index of its word, -1 for a pause."""

    name: str
    begin: int
    end: int
    word: int


def list_phones(spoken: SpokenText) -> list[Phone]:
    """Translate phoneme events: each ends where the next begins, and consecutive pauses become one.

    An l that espeak-ng merges into the vowel before it (*twelve*) has no duration and is left out here; it is in the
    pronunciation of its word.
    """
    names = [_translate(symbol) for _, symbol in spoken.phonemes]
    begins = [begin for begin, _ in spoken.phonemes]
    found: list[Phone] = []
    for name, begin, end, word in zip(names, begins, [*begins[1:], len(spoken.samples)], spoken.owners, strict=True):
        if name is None and not found:
            continue
        if name is None or (name == SILENCE and found and found[-1].name == SILENCE):
            last = found.pop()
            found.append(Phone(last.name, last.begin, max(end, last.end), last.word))
        elif end > begin:
            found.append(Phone(name, begin, end, -1 if name == SILENCE else word))
    return found


def list_pronunciations(spoken: SpokenText, num_words: int) -> list[tuple[str, ...]]:
    """List the phones of each word; raise if espeak-ng spoke two words as one."""
    if len(spoken.words) != num_words:
        raise DataError(f"espeak-ng spoke {num_words} words as {len(spoken.words)}")
    words: list[list[str]] = [[] for _ in range(num_words)]
    for (_, symbol), word in zip(spoken.phonemes, spoken.owners, strict=True):
        name = _translate(symbol)
        if name is not None and name != SILENCE:
            words[word].append(name)
    if not all(words):
        raise DataError("espeak-ng left a word without phonemes")
    return [tuple(word) for word in words]


def _translate(symbol: str) -> str | None:
    """Return the phone, or None for a mark that is no sound."""
    if symbol.startswith("_"):
        return SILENCE
    bare = symbol.lstrip(_STRESS)
    if bare in _MARKS or not bare:
        return None
    if bare not in _PHONES:
        raise DataError(f"espeak-ng's phoneme {symbol!r} has no phone in the table of espeak_phones.py")
    return _PHONES[bare]

"""Pronounce words that are in no dictionary with espeak-ng."""

from __future__ import annotations

from collections.abc import Iterable

from roundelay.corpora.espeak import Espeak, Voice
from roundelay.speech.language.lexicon import Pronunciation

_VOICE = Voice("en-us", 175, 50, 50)
_STRESS = "',%=|"
_SILENT = {"", ";", "r-", "_", "_:", "_!", "_|", "||"}
"""Pauses, glides and marks that are no sound of a word."""

_PHONES = {
    "p": "P", "b": "B", "t": "T", "t2": "T", "t#": "T", "?": "T", "d": "D", "k": "K", "g": "G", "tS": "CH",
    "dZ": "JH", "f": "F", "v": "V", "T": "TH", "D": "DH", "s": "S", "z": "Z", "S": "SH", "Z": "ZH", "h": "HH",
    "x": "K", "m": "M", "n": "N", "N": "NG", "l": "L", "r": "R", "w": "W", "j": "Y", "n-": "AH N", "l-": "AH L",
    "m-": "AH M", "@L": "AH L", "i:": "IY", "i": "IY", "I": "IH", "E": "EH", "a": "AE", "aa": "AE", "a#": "AH",
    "A:": "AA", "A": "AA", "0": "AA", "O:": "AO", "O": "AO", "V": "AH", "U": "UH", "u:": "UW", "u": "UW", "@": "AH",
    "3": "ER", "3:": "ER", "VR": "ER", "IR": "ER", "eI": "EY", "aI": "AY", "OI": "OY", "oU": "OW", "aU": "AW",
    "A@": "AA R", "o@": "AO R", "O@": "AO R", "i@": "IH R", "i@3": "IH R", "I@": "IH R", "e@": "EH R", "U@": "UH R",
    "aI@": "AY ER", "aI3": "AY ER", "aU@": "AW ER", "A~": "AA N", "O~": "AO N", "E~": "EH N", "y": "UW",
}  # fmt: skip
"""espeak-ng's English phonemes as phones of the CMU dictionary; an r inside a vowel becomes a separate phone, and
reduced vowels become AH."""


class EspeakPronouncer:
    """Pronounce words with espeak-ng, in American English and the CMU dictionary's phones.

    ``phones`` are those of the lexicon; if it has a phone in lower case, this spelling is used.
    """

    def __init__(self, phones: Iterable[str] = ()) -> None:
        self._espeak = Espeak()
        self._lower = {phone.upper(): phone for phone in phones if phone != phone.upper()}

    def __call__(self, word: str) -> list[Pronunciation]:
        """Return one pronunciation, or none if espeak-ng says nothing or a sound that is not English."""
        found: list[str] = []
        for _, symbol in self._espeak.say(_VOICE, word.lower()).phonemes:
            bare = symbol.lstrip(_STRESS)
            if bare in _SILENT or symbol.startswith("_"):
                continue
            phones = _PHONES.get(bare) or _PHONES.get(bare.rstrip("0123456789#-"))  # I2, I#: a shade of I
            if phones is None:
                return []
            for phone in phones.split():
                if phone != "R" or found[-1:] not in (["R"], ["ER"]):  # the r of *zero* is in the vowel and beside it
                    found.append(phone)
        return [tuple(self._lower.get(phone, phone) for phone in found)] if found else []

"""Words and how they are pronounced.

Phone ids are ``index + 1`` and word ids ``index + 1``, since 0 is epsilon in transducers.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.errors import DataError
from roundelay.files import write_text
from roundelay.formats.text_tables import read_lines

Pronunciation = tuple[str, ...]
Guess = Callable[[str], list[Pronunciation]]

SILENCE = "sil"
_VARIANT = re.compile(r"^(.+)\(\d+\)$")
_STRESSED = re.compile(r"^([A-Z]+)[0-2]$")
_NUMBER = re.compile(r"^\d+(\.\d+)?([eE][-+]?\d+)?$")
_RESERVED = {"<eps>", "<s>", "</s>", "#0"}


@dataclass(frozen=True)
class Lexicon:
    """The pronunciations of every word, and the phones in them."""

    pronunciations: dict[str, list[Pronunciation]]
    silence: str = SILENCE
    unknown: tuple[str, ...] = field(default=())
    """Words whose pronunciation was guessed, since they are in no dictionary."""

    def __post_init__(self) -> None:
        self.check()

    @functools.cached_property
    def phones(self) -> list[str]:
        """List silence, then all other phones in order."""
        spoken = {phone for variants in self.pronunciations.values() for variant in variants for phone in variant}
        return [self.silence, *sorted(spoken - {self.silence})]

    @functools.cached_property
    def phone_ids(self) -> dict[str, int]:
        """Map each phone to its id, from 1."""
        return {phone: i for i, phone in enumerate(self.phones, 1)}

    @functools.cached_property
    def words(self) -> list[str]:
        """List all words in order."""
        return sorted(self.pronunciations)

    @functools.cached_property
    def word_ids(self) -> dict[str, int]:
        """Map each word to its id, from 1."""
        return {word: i for i, word in enumerate(self.words, 1)}

    def __contains__(self, word: object) -> bool:
        return word in self.pronunciations

    def __getitem__(self, word: str) -> list[Pronunciation]:
        try:
            return self.pronunciations[word]
        except KeyError:
            raise DataError(f"lexicon: {word!r} has no pronunciation; add it, or let --unknown guess one") from None

    def check(self) -> None:
        """Raise on an empty lexicon, a reserved word, a word or variant without phones."""
        if not self.pronunciations:
            raise DataError("lexicon: it has no word")
        for word, variants in self.pronunciations.items():
            if word in _RESERVED or not word or len(word.split()) != 1:
                raise DataError(f"lexicon: {word!r} cannot be a word")
            if not variants or not all(variants):
                raise DataError(f"lexicon: {word!r} has no phones")
            for phone in (phone for variant in variants for phone in variant):
                if phone.startswith(("#", "<")) or len(phone.split()) != 1:
                    raise DataError(f"lexicon: {word!r} has {phone!r}, which cannot be a phone")

    def missing(self, words: Iterable[str]) -> list[str]:
        """List those of ``words`` without a pronunciation, in order and each once."""
        return sorted(set(words) - self.pronunciations.keys())

    def phone_sequence(self, words: Sequence[str]) -> list[int]:
        """Return the phone ids of the words' first pronunciations, without silence: what CTC is trained on."""
        return [self.phone_ids[phone] for word in words for phone in self[word][0]]

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Lexicon:
        """Read ``word phone phone ...`` lines, one pronunciation each, as Kaldi and the CMU dictionary have them."""
        return Lexicon(read_pronunciations(path))

    @staticmethod
    def open(folder: Path) -> Lexicon:
        """Read lexicon.txt of a folder, and unknown.txt, the words whose pronunciation was guessed."""
        unknown = (folder / "unknown.txt").read_text(encoding="utf-8").split()
        return Lexicon(read_pronunciations(folder / "lexicon.txt"), unknown=tuple(unknown))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write ``word phone phone ...`` lines in order."""
        lines = (f"{word} {' '.join(variant)}\n" for word in self.words for variant in self.pronunciations[word])
        write_text(path, "".join(lines))

    def write_symbols(self, phones: str | os.PathLike[str], words: str | os.PathLike[str]) -> None:
        """Write the tables of phone and word ids."""
        write_text(phones, "".join(f"{name} {i}\n" for i, name in enumerate(["<eps>", *self.phones])))
        write_text(words, "".join(f"{name} {i}\n" for i, name in enumerate(["<eps>", *self.words, "#0"])))


def read_pronunciations(
    path: str | os.PathLike[str], only: Iterable[str] | None = None
) -> dict[str, list[Pronunciation]]:
    """Read the pronunciations of all words, or of ``only`` some (a word's other cases count as the word).

    Formats are Kaldi's lexicon.txt and lexiconp.txt (its probabilities are ignored) and the CMU dictionary (``;;;`` and
    ``# `` comments, ``WORD(2)`` variants, and stress marks, which are removed).
    """
    wanted = None if only is None else {word.casefold(): word for word in only}
    result: dict[str, list[Pronunciation]] = {}
    lines = _lines(path)
    weighted = _weighted(lines)
    for number, fields in lines:
        word, phones = fields[0], fields[2 if weighted else 1 :]
        variant = _VARIANT.match(word)
        word = variant.group(1) if variant else word
        if wanted is not None:
            if word.casefold() not in wanted:
                continue
            word = wanted[word.casefold()]
        if not phones:
            raise DataError(f"{path}:{number}: {word!r} has no phones")
        entry = tuple(_plain(phone) for phone in phones)
        variants = result.setdefault(word, [])
        if entry not in variants:
            variants.append(entry)
    if not result and wanted is None:
        raise DataError(f"{path}: no word in it")
    return result


def _lines(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """Return number and fields of each line that is neither empty nor a comment."""
    lines = [(number, line) for number, line in read_lines(Path(path)) if not line.startswith((";;;", "# "))]
    return [(number, line.partition(" #")[0].split()) for number, line in lines]


def _weighted(lines: Sequence[tuple[int, list[str]]]) -> bool:
    """Return whether every word is followed by a probability, as in Kaldi's lexiconp.txt."""
    return bool(lines) and all(len(fields) > 2 and _NUMBER.match(fields[1]) for _, fields in lines)


def _plain(phone: str) -> str:
    """Remove the stress of a vowel: AH0 becomes AH."""
    match = _STRESSED.match(phone)
    return match.group(1) if match else phone


def complete_lexicon(
    words: Iterable[str], known: Mapping[str, list[Pronunciation]], guess: Guess | None = None, where: str = "lexicon"
) -> Lexicon:
    """Make a lexicon of all ``known`` words and all ``words``; ``guess`` pronounces those that are not known.

    No word is dropped silently: without ``guess``, or if it returns nothing, an error names the words.
    """
    unknown = sorted(set(words) - known.keys())
    entries = dict(known)
    if guess:
        entries.update({word: variants for word in unknown if (variants := guess(word))})
    without = [word for word in unknown if word not in entries]
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        shown = ", ".join(without[:5]) + more
        raise DataError(f"{where}: no pronunciation of {shown}; add them, give --dictionary, or use --unknown grapheme")
    return Lexicon(entries, unknown=tuple(unknown))


def guess_graphemes(word: str) -> list[Pronunciation]:
    """Use a word's letters and digits as its pronunciation; other characters are left out.

    Letters have a prefix (``_a``), so that the letter B differs from a dictionary's phone B.
    """
    letters = tuple(f"_{sign}" for sign in word.lower() if sign.isalnum())
    return [letters] if letters else []

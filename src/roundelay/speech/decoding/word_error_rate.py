"""Word error rates: counted by utterance, with a confidence interval, and compared between two systems.

The bootstrap draws utterances, not words, since errors within an utterance depend on each other (Bisani & Ney, 2004,
"Bootstrap estimates for confidence intervals in ASR performance evaluation").
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError, import_extra
from roundelay.files import write_text

UTTERANCES = "utterances.jsonl"
_REPLICATES = 10_000
_AT_ONCE = 1 << 22  # draws held at a time: 32 MB
_SEED = 0  # the same interval each time

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredUtterance:
    """One utterance: reference, hypothesis and errors."""

    utterance: str
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]
    insertions: int
    deletions: int
    substitutions: int

    @property
    def errors(self) -> int:
        """Count all errors."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def words(self) -> int:
        """Count the words of the reference."""
        return len(self.reference)

    @staticmethod
    def from_words(utterance: str, reference: Sequence[str], hypothesis: Sequence[str]) -> ScoredUtterance:
        """Align two word sequences with the fewest errors."""
        counts = import_extra("kaldialign", "speech").edit_distance(list(reference), list(hypothesis))
        return ScoredUtterance(
            utterance, tuple(reference), tuple(hypothesis), counts["ins"], counts["del"], counts["sub"]
        )


@dataclass(frozen=True)
class Wer:
    """The word error rate of a set of utterances."""

    utterances: tuple[ScoredUtterance, ...]

    @classmethod
    def from_words(cls, references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, Sequence[str]]) -> Wer:
        """Score hypotheses; an utterance without a hypothesis counts as empty."""
        for name in hypotheses:
            if name not in references:
                raise DataError(f"utterance {name!r} was recognised but has no transcript; add it to text")
        result = cls(
            tuple(
                ScoredUtterance.from_words(name, words, hypotheses.get(name, ())) for name, words in references.items()
            )
        )
        if not result.words:
            raise DataError(f"no word in the transcripts of {len(references)} utterances; add transcripts")
        return result

    @property
    def words(self) -> int:
        """Count the words of all references."""
        return sum(scored.words for scored in self.utterances)

    @property
    def errors(self) -> int:
        """Count all errors."""
        return sum(scored.errors for scored in self.utterances)

    @property
    def wer(self) -> float:
        """Return errors per hundred words."""
        return 100.0 * self.errors / self.words

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of ``wer``."""
        (rates,) = _rates([self], _REPLICATES)
        low, high = np.percentile(rates, [2.5, 97.5])
        return float(low), float(high)

    def describe(self) -> dict[str, Any]:
        """Return rate, interval and counts."""
        return {
            "wer": self.wer,
            "interval": list(self.interval),
            "words": self.words,
            "errors": self.errors,
            "insertions": sum(scored.insertions for scored in self.utterances),
            "deletions": sum(scored.deletions for scored in self.utterances),
            "substitutions": sum(scored.substitutions for scored in self.utterances),
            "utterances": len(self.utterances),
        }

    def save(self, folder: Path) -> None:
        """Write utterances.jsonl, one line per utterance."""
        write_text(
            folder / UTTERANCES, "".join(json.dumps(_row(s), ensure_ascii=False) + "\n" for s in self.utterances)
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Wer:
        """Read what ``save`` wrote."""
        path = Path(folder) / UTTERANCES if Path(folder).is_dir() else Path(folder)
        if not path.is_file():
            raise DataError(f"{path}: no decoding results; run roundelay decode first")
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return cls(
                tuple(
                    ScoredUtterance.from_words(r["utterance"], r["reference"].split(), r["hypothesis"].split())
                    for r in rows
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not scored utterances ({error}); decode again") from None


def _row(scored: ScoredUtterance) -> dict[str, Any]:
    return {
        "utterance": scored.utterance,
        "reference": " ".join(scored.reference),
        "hypothesis": " ".join(scored.hypothesis),
        "errors": scored.errors,
        "words": scored.words,
    }


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same utterances."""

    first: float
    second: float
    interval: tuple[float, float]
    """95 % interval of ``difference``; the same utterances are drawn for both systems."""
    p: float
    """Two-sided p-value of the difference: below 0.05 it is significant."""

    @property
    def difference(self) -> float:
        """Return the second word error rate minus the first: below zero the second is better."""
        return self.second - self.first

    @property
    def significant(self) -> bool:
        """Return whether the difference is significant."""
        return self.p < 0.05

    def describe(self) -> dict[str, Any]:
        """Return all values."""
        derived = {"difference": self.difference, "significant": self.significant}
        return asdict(self) | derived | {"interval": list(self.interval)}


def compare_wer(
    first: Wer | str | os.PathLike[str], second: Wer | str | os.PathLike[str], *, replicates: int = _REPLICATES
) -> Comparison:
    """Test whether two systems differ, from their results on the same utterances (or the results' folders)."""
    one, other = (given if isinstance(given, Wer) else Wer.load(given) for given in (first, second))
    _check_same(one, other)
    by_name = {scored.utterance: scored for scored in other.utterances}
    other = Wer(tuple(by_name[scored.utterance] for scored in one.utterances))
    a, b = _rates([one, other], replicates)
    difference = b - a
    low, high = np.percentile(difference, [2.5, 97.5])
    # Ties count for both sides, and p is at least one over the number of draws.
    tail = min(float(np.mean(difference <= 0)), float(np.mean(difference >= 0)))
    return Comparison(one.wer, other.wer, (float(low), float(high)), min(1.0, max(2 * tail, 1 / replicates)))


def _check_same(one: Wer, other: Wer) -> None:
    said = [{scored.utterance: scored.reference for scored in wer.utterances} for wer in (one, other)]
    if lonely := sorted(said[0].keys() ^ said[1].keys()):
        raise DataError(f"only one of the two has utterance {lonely[0]!r}; compare results on the same split")
    for name, words in said[0].items():
        if said[1][name] != words:
            raise DataError(f"utterance {name!r} has two different transcripts; compare results on the same split")


def _rates(systems: Sequence[Wer], replicates: int) -> list[Floats]:
    """Draw utterances with replacement, the same for all systems, and return each system's rates."""
    rng = np.random.default_rng(_SEED)
    words = np.array([scored.words for scored in systems[0].utterances], np.float64)
    errors = [np.array([scored.errors for scored in system.utterances], np.float64) for system in systems]
    found: list[list[Floats]] = [[] for _ in systems]
    for size in _parts(replicates, max(1, _AT_ONCE // len(words))):
        drawn = rng.integers(len(words), size=(size, len(words)))
        total = np.maximum(words[drawn].sum(1), 1.0)
        for rates, counts in zip(found, errors, strict=True):
            rates.append(100.0 * counts[drawn].sum(1) / total)
    return [np.concatenate(rates) for rates in found]


def _parts(total: int, size: int) -> Iterable[int]:
    while total > 0:
        yield min(size, total)
        total -= size

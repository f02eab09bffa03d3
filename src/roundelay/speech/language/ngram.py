"""N-gram language models: count, smooth, write and read ARPA files, and measure perplexity.

Interpolated models are stored in back-off form: a listed n-gram has its interpolated probability, any other word that
of the shorter history times the history's back-off weight.  Logarithms are to base 10, as in ARPA files.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.errors import DataError, SettingsError
from roundelay.files import replacing

Ngram = tuple[str, ...]
BEGIN, END = "<s>", "</s>"
NEVER = -99.0  # log10 of a probability that is zero, as SRILM writes it


@dataclass(frozen=True)
class NgramModel:
    """Log10 probabilities by n-gram and log10 back-off weights by history."""

    order: int
    logprobs: dict[Ngram, float]
    backoffs: dict[Ngram, float]

    @property
    def vocabulary(self) -> list[str]:
        """List all words in order, without the marks of sentences."""
        return sorted(gram[0] for gram in self.logprobs if len(gram) == 1 and gram[0] not in (BEGIN, END))

    def logprob(self, word: str, history: Sequence[str]) -> float:
        """Return log10 P(word | history), shortening the history as far as needed."""
        context = tuple(history)[max(0, len(history) - self.order + 1) :]
        penalty = 0.0
        while True:
            known = self.logprobs.get((*context, word))
            if known is not None:
                return penalty + known
            if not context:
                raise DataError(f"language model: {word!r} is not in its vocabulary")
            penalty += self.backoffs.get(context, 0.0)
            context = context[1:]


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts sentences."""

    perplexity: float
    num_sentences: int
    num_words: int
    num_unknown: int
    """Words outside the vocabulary: they are not predicted, not counted, and not used as history."""


def perplexity(model: NgramModel, sentences: Iterable[Sequence[str]]) -> Perplexity:
    """Measure a model on sentences, per word and sentence end."""
    total, events, words, unknown, count = 0.0, 0, 0, 0, 0
    for sentence in sentences:
        count += 1
        history: list[str] = [BEGIN]
        for word in (*sentence, END):
            words += word != END
            if (word,) not in model.logprobs:
                unknown += 1
                history = []
                continue
            total += model.logprob(word, history)
            events += 1
            history.append(word)
    if not events:
        raise DataError("language model: no sentence to measure it on")
    return Perplexity(10 ** (-total / events), count, words, unknown)


Counts = list[Counter[Ngram]]
"""Occurrences by n-gram; the n-grams of length n are in entry n - 1."""

_Rule = Callable[[Counter[str]], tuple[dict[str, float], float, float]]
"""From the counts after a history: the discounted counts, their denominator, and the mass for shorter histories."""


def count(sentences: Iterable[Sequence[str]], order: int) -> Counts:
    """Count all n-grams up to ``order``, with sentence begins as histories and ends as words."""
    if order < 1:
        raise SettingsError(f"language model: order must be at least 1, not {order}")
    counts: Counts = [Counter() for _ in range(order)]
    for sentence in sentences:
        words = (BEGIN, *sentence, END)
        for n in range(1, order + 1):
            counts[n - 1].update(words[i : i + n] for i in range(len(words) - n + 1))
    counts[0].pop((BEGIN,), None)  # a sentence's begin is never predicted
    return counts


def flat(vocabulary: Iterable[str]) -> NgramModel:
    """Make the model in which every word, and the end, is always equally likely."""
    words = _words(vocabulary, [])
    value = -math.log10(len(words))
    return NgramModel(1, {(BEGIN,): NEVER, **{(word,): value for word in words}}, {})


def witten_bell(counts: Counts, vocabulary: Iterable[str]) -> NgramModel:
    """Smooth by Witten and Bell's rule, interpolated.

    P(w|h) = (c(h w) + T(h) P(w|h')) / (c(h) + T(h)), where T(h) is the number of different words after h and h' is h
    without its first word; below the unigrams is the uniform distribution over the vocabulary.
    (Witten and Bell 1991, method C; as interpolation in Chen and Goodman 1998, section 2.5.)
    """

    def rule(followers: Counter[str]) -> tuple[dict[str, float], float, float]:
        types = float(len(followers))
        return {word: float(c) for word, c in followers.items()}, followers.total() + types, types

    return _interpolated(counts, vocabulary, [rule] * len(counts))


def kneser_ney(counts: Counts, vocabulary: Iterable[str]) -> NgramModel:
    """Smooth by modified Kneser-Ney, interpolated.

    Below the highest order, the count of an n-gram is the number of different words before it (n-grams that begin a
    sentence keep their own counts).  One of three discounts, for counts 1, 2 and more, is subtracted from every count
    and given to the shorter history.  (Chen and Goodman 1998, section 3; discounts by their equation 26.)
    """
    adjusted = _continuations(counts)
    return _interpolated(adjusted, vocabulary, [_discounting(_steps(table)) for table in adjusted])


def _discounting(steps: tuple[float, float, float]) -> _Rule:
    def rule(followers: Counter[str]) -> tuple[dict[str, float], float, float]:
        kept = {word: c - steps[min(c, 3) - 1] for word, c in followers.items()}
        total = float(followers.total())
        return kept, total, total - sum(kept.values())

    return rule


def _continuations(counts: Counts) -> Counts:
    """Replace counts below the highest order by numbers of different predecessors."""
    adjusted: Counts = [Counter() for _ in counts[:-1]]
    for n, table in enumerate(adjusted, 1):
        for gram in counts[n]:
            table[gram[1:]] += 1
        for gram, c in counts[n - 1].items():
            if gram[0] == BEGIN:  # no word precedes it
                table[gram] = c
    return [*adjusted, counts[-1]]


def _steps(table: Counter[Ngram]) -> tuple[float, float, float]:
    """Estimate the discounts of counts 1, 2 and more; with too few data use the same discount for all three."""
    spectrum = Counter(min(c, 5) for c in table.values())
    n1, n2, n3, n4 = (spectrum[c] for c in (1, 2, 3, 4))
    if not n1 or not n2:
        return 0.5, 0.5, 0.5
    y = n1 / (n1 + 2 * n2)
    steps = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3 if n3 else 3 * y)
    return steps if all(0 < step < k for k, step in enumerate(steps, 1)) else (y, y, y)


def _interpolated(counts: Counts, vocabulary: Iterable[str], rules: Sequence[_Rule]) -> NgramModel:
    """Interpolate each order with the one below."""
    words = _words(vocabulary, (gram[0] for gram in counts[0]))
    probabilities: dict[Ngram, float] = {(word,): 1.0 / len(words) for word in words}
    backoffs: dict[Ngram, float] = {}
    for n, (table, rule) in enumerate(zip(counts, rules, strict=True), 1):
        followers: defaultdict[Ngram, Counter[str]] = defaultdict(Counter)
        for gram, c in table.items():
            if gram[-1] != BEGIN:
                followers[gram[:-1]][gram[-1]] = c
        for history, seen in followers.items():
            kept, total, left = rule(seen)
            share = left / total
            if n == 1:
                unigrams = {w: (kept.get(w, 0.0) / total + share * probabilities[w,]) for w in words}
                probabilities = {(word,): p for word, p in unigrams.items()}
                continue
            backoffs[history] = math.log10(share) if share > 0 else NEVER
            for word, mass in kept.items():
                probabilities[*history, word] = mass / total + share * probabilities[*history[1:], word]
    logprobs = {gram: math.log10(p) for gram, p in probabilities.items()}
    return NgramModel(len(counts), {(BEGIN,): NEVER, **logprobs}, backoffs)


def _words(vocabulary: Iterable[str], seen: Iterable[str]) -> list[str]:
    words = set(vocabulary) - {BEGIN, END}
    if not words:
        raise DataError("language model: its vocabulary is empty")
    outside = sorted(set(seen) - words - {BEGIN, END})
    if outside:
        raise DataError(f"language model: {outside[0]!r} is in the text and not in the vocabulary")
    return [*sorted(words), END]


def write_arpa(model: NgramModel, path: str | os.PathLike[str]) -> None:
    """Write a model as an ARPA file, n-grams in order."""
    tables: list[list[Ngram]] = [[] for _ in range(model.order)]
    for gram in model.logprobs:
        tables[len(gram) - 1].append(gram)
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        file.writelines(f"ngram {n}={len(table)}\n" for n, table in enumerate(tables, 1))
        for n, table in enumerate(tables, 1):
            file.write(f"\n\\{n}-grams:\n")
            for gram in sorted(table):
                backoff = f"\t{model.backoffs[gram]:.6f}" if gram in model.backoffs else ""
                file.write(f"{model.logprobs[gram]:.6f}\t{' '.join(gram)}{backoff}\n")
        file.write("\n\\end\\\n")


def read_arpa(path: str | os.PathLike[str]) -> NgramModel:
    r"""Read an ARPA file; all lines before ``\data\`` are comments, even if they look like n-grams."""
    declared: dict[int, int] = {}
    found: Counter[int] = Counter()
    logprobs: dict[Ngram, float] = {}
    backoffs: dict[Ngram, float] = {}
    order, ended = 0, False
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in _arpa_body(file):
            if "\ufffd" in line:
                raise DataError(f"{path}:{number}: not UTF-8 text; convert it, for example with iconv")
            if line == "\\end\\":
                ended = True
                break
            if header := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line):
                declared[int(header[1])] = int(header[2])
            elif section := re.fullmatch(r"\\(\d+)-grams:", line):
                order = int(section[1])
            else:
                _arpa_entry(f"{path}:{number}", line, order, logprobs, backoffs)
                found[order] += 1
    if not declared or not ended:
        raise DataError(f"{path}: not a complete ARPA file; it needs lines \\data\\ and \\end\\")
    for n, expected in declared.items():
        if found[n] != expected:
            raise DataError(f"{path}: {expected} {n}-grams are declared, but {found[n]} were found")
    return NgramModel(max(declared), logprobs, backoffs)


def _arpa_body(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    r"""Yield number and text of the lines after ``\data\`` that are not empty."""
    inside = False
    for number, line in enumerate(file, 1):
        line = line.strip()
        if inside and line:
            yield number, line
        inside = inside or line == "\\data\\"


def _arpa_entry(where: str, line: str, order: int, logprobs: dict[Ngram, float], backoffs: dict[Ngram, float]) -> None:
    fields = line.split()
    if order < 1 or len(fields) not in (order + 1, order + 2):
        raise DataError(f"{where}: expected log10 probability, {order} words and optionally a back-off weight")
    try:
        gram = tuple(fields[1 : order + 1])
        logprobs[gram] = float(fields[0])
        if len(fields) == order + 2:
            backoffs[gram] = float(fields[-1])
    except ValueError:
        raise DataError(f"{where}: expected a number in {line!r}") from None

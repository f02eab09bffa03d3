"""Language models against arithmetic by hand, and as distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.speech.language.ngram import (
    BEGIN,
    END,
    Counts,
    NgramModel,
    count,
    flat,
    kneser_ney,
    perplexity,
    read_arpa,
    witten_bell,
    write_arpa,
)

Estimator = Callable[[Counts, list[str]], NgramModel]
WORDS = list("abcdef")


def sentences(number: int = 60) -> list[list[str]]:
    random = np.random.default_rng(0)
    weights = np.array([8, 5, 3, 2, 1, 0]) / 19  # f never occurs
    return [list(random.choice(WORDS, size=random.integers(1, 6), p=weights)) for _ in range(number)]


def test_counts_by_hand() -> None:
    counts = count([["a", "b"], ["a"]], 2)
    assert counts[0] == {("a",): 2, ("b",): 1, (END,): 2}
    assert counts[1] == {(BEGIN, "a"): 2, ("a", "b"): 1, ("b", END): 1, ("a", END): 1}
    with pytest.raises(SettingsError, match="order"):
        count([], 0)


def test_witten_bell_by_hand() -> None:
    model = witten_bell(count([["a", "b"], ["a"]], 2), ["a", "b", "c"])
    # Unigrams: 5 events of 3 types over 4 words (the end is one); uniform 1/4.
    a = (2 + 3 / 4) / 8
    c = (3 / 4) / 8
    end = (2 + 3 / 4) / 8
    assert 10 ** model.logprob("a", []) == pytest.approx(a)
    assert 10 ** model.logprob("c", []) == pytest.approx(c)
    # After a: b once, the end once; 2 types.
    assert 10 ** model.logprob(END, ["a"]) == pytest.approx((1 + 2 * end) / 4)
    assert 10 ** model.logprob("c", ["a"]) == pytest.approx(2 / 4 * c)
    sentence = model.logprob("a", [BEGIN]) + model.logprob(END, [BEGIN, "a"])
    assert 10**sentence == pytest.approx((2 + a) / 3 * (1 + 2 * end) / 4)


def test_kneser_ney_by_hand() -> None:
    # Bigrams: (s a) 2, (a b) 1, (b e) 1, (a e) 1: n1 = 3, n2 = 1, so y = 3/5 and D1 = 1 - 2/5 / 1 = 0.6;
    # D2 = 2 - 3 y n3/n2 = 2 is not below 2, hence one discount of y = 0.6 for all.
    model = kneser_ney(count([["a", "b"], ["a"]], 2), ["a", "b", "c"])
    # Continuations: a after s (1), b after a (1), the end after b and a (2): n1 = 2, n2 = 1, y = 1/2 for all.
    uniform = 1 / 4
    lower = {"a": 0.5 / 4, "b": 0.5 / 4, END: 1.5 / 4, "c": 0.0}
    lower = {word: p + 1.5 / 4 * uniform for word, p in lower.items()}
    for word, p in lower.items():
        assert 10 ** model.logprob(word, []) == pytest.approx(p)
    assert 10 ** model.logprob("b", ["a"]) == pytest.approx(0.4 / 2 + 1.2 / 2 * lower["b"])
    assert 10 ** model.logprob("c", ["a"]) == pytest.approx(1.2 / 2 * lower["c"])
    assert 10 ** model.logprob("a", [BEGIN]) == pytest.approx(1.4 / 2 + 0.6 / 2 * lower["a"])


@pytest.mark.parametrize("estimator", [witten_bell, kneser_ney])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_history_is_a_distribution(estimator: Estimator, order: int) -> None:
    model = estimator(count(sentences(), order), WORDS)
    for length in range(4):
        for history in itertools.product([BEGIN, *WORDS], repeat=length):
            total = sum(10 ** model.logprob(word, history) for word in [*WORDS, END])
            assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("estimator", [witten_bell, kneser_ney])
def test_unseen_words_keep_a_share(estimator: Estimator) -> None:
    model = estimator(count(sentences(), 3), WORDS)
    assert 0 < 10 ** model.logprob("f", ["a", "b"]) < 0.05


def test_flat_is_flat() -> None:
    model = flat(WORDS)
    assert [10 ** model.logprob(word, ["a"]) for word in [*WORDS, END]] == pytest.approx([1 / 7] * 7)
    assert perplexity(model, sentences()).perplexity == pytest.approx(7)
    assert model.vocabulary == WORDS


def test_perplexity_leaves_unknown_words_out() -> None:
    result = perplexity(flat(WORDS), [["a", "zoo", "b"]])
    assert (result.num_sentences, result.num_words, result.num_unknown) == (1, 3, 1)
    assert result.perplexity == pytest.approx(7)
    with pytest.raises(DataError, match="no sentence"):
        perplexity(flat(WORDS), [])


def test_words_must_be_known() -> None:
    with pytest.raises(DataError, match="'zoo' is in the text and not in the vocabulary"):
        witten_bell(count([["zoo"]], 2), WORDS)
    with pytest.raises(DataError, match="'zoo' is not in its vocabulary"):
        flat(WORDS).logprob("zoo", [])
    with pytest.raises(DataError, match="vocabulary is empty"):
        flat([])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_arpa_round_trip(tmp_path: Path, order: int) -> None:
    model = kneser_ney(count(sentences(), order), WORDS)
    write_arpa(model, tmp_path / "G.arpa")
    again = read_arpa(tmp_path / "G.arpa")
    assert again.order == order
    assert again.logprobs == pytest.approx(model.logprobs, abs=1e-6)
    assert again.backoffs == pytest.approx(model.backoffs, abs=1e-6)


GOOD = "\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-0.5 a\n-0.5 </s>\n\n\\end\\\n"


def test_prose_before_the_data_is_skipped(tmp_path: Path) -> None:
    prose = "marked by \\data\\\nngram 1=nr\n\\1-grams:\np_1 wd_1 bo_wt_1\n\\end\\\n\n"
    (tmp_path / "G.arpa").write_text(prose + GOOD)
    assert read_arpa(tmp_path / "G.arpa").vocabulary == ["a"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("1=3", "1=4", "4 1-grams are declared, but 3 were found"),
        ("\\end\\", "", "not a complete ARPA file"),
        ("\\data\\", "", "not a complete ARPA file"),
        ("-0.5 a\n", "-0.5 a b c\n", "G.arpa:6: expected log10"),
        ("-0.5 a", "half a", "G.arpa:6: expected a number in 'half a'"),
    ],
)
def test_bad_arpa(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    (tmp_path / "G.arpa").write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=complaint):
        read_arpa(tmp_path / "G.arpa")


def test_an4(corpora: Path) -> None:
    given = read_arpa(corpora / "an4" / "lm" / "an4.unigram.arpa")
    assert given.order == 2
    assert given.logprobs["A",] == given.logprobs["ZERO",] == -2.0253
    texts = {
        split: [line.split()[1:] for line in (corpora / "an4" / split / "text").read_text().splitlines()]
        for split in ("train", "dev")
    }
    words = (corpora / "an4" / "words.txt").read_text().split()
    measured = {order: perplexity(kneser_ney(count(texts["train"], order), words), texts["dev"]) for order in (1, 2, 3)}
    assert measured[3].perplexity < measured[2].perplexity < measured[1].perplexity < math.inf
    assert measured[2].perplexity < 22

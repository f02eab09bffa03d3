"""Counting errors, their interval, and whether two systems differ."""

from __future__ import annotations

from pathlib import Path

import kaldialign
import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.decoding.word_error_rate import ScoredUtterance, Wer, compare_wer


def test_errors_are_told_apart() -> None:
    scored = ScoredUtterance.from_words("u", ["A", "B", "C", "D"], ["A", "X", "C", "D", "E"])
    assert (scored.substitutions, scored.insertions, scored.deletions) == (1, 1, 0)
    assert (scored.errors, scored.words) == (2, 4)
    assert ScoredUtterance.from_words("u", ["A", "B"], []).deletions == 2


def brute_force(reference: list[int], hypothesis: list[int]) -> int:
    """The edit distance by its recursion."""
    table = np.zeros((len(reference) + 1, len(hypothesis) + 1), int)
    table[:, 0], table[0] = range(len(reference) + 1), range(len(hypothesis) + 1)
    for i, a in enumerate(reference, 1):
        for j, b in enumerate(hypothesis, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b))
    return int(table[-1, -1])


def test_errors_are_the_fewest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        one, other = (rng.integers(4, size=rng.integers(9)).tolist() for _ in range(2))
        assert ScoredUtterance.from_words("u", [str(x) for x in one], [str(x) for x in other]).errors == brute_force(
            one, other
        )


def test_the_rate_counts_words_not_utterances() -> None:
    wer = Wer.from_words({"a": ["X"] * 9, "b": ["Y"]}, {"a": ["X"] * 9, "b": ["Z"]})
    assert wer.wer == pytest.approx(10.0)
    assert wer.describe()["substitutions"] == 1
    assert Wer.from_words({"a": ["X"]}, {"a": ["X", "X", "X"]}).wer == pytest.approx(200.0)


def test_an_utterance_without_hypothesis_counts() -> None:
    assert Wer.from_words({"a": ["X", "Y"], "b": ["X", "Y"]}, {"a": ["X", "Y"]}).describe()["deletions"] == 2


def test_what_cannot_be_scored_is_named() -> None:
    with pytest.raises(DataError, match="utterance 'b' was recognised but has no transcript"):
        Wer.from_words({"a": ["X"]}, {"a": ["X"], "b": ["Y"]})
    with pytest.raises(DataError, match="no word in the transcripts of 1 utterances"):
        Wer.from_words({"a": []}, {"a": ["X"]})


def system(rate: float, seed: int, count: int = 200, shared: int | None = None) -> Wer:
    """Recognise each of six words an utterance wrongly at some rate; ``shared`` seeds errors that two systems share."""
    own = np.random.default_rng(seed)
    common = np.random.default_rng(shared) if shared is not None else own
    rows = [[("X" if common.random() < rate or own.random() < 0.01 else "W") for _ in range(6)] for _ in range(count)]
    return Wer.from_words({f"u{i}": ["W"] * 6 for i in range(count)}, {f"u{i}": row for i, row in enumerate(rows)})


def test_the_interval_is_that_of_kaldialign() -> None:
    wer = system(0.1, 1)
    theirs = kaldialign.bootstrap_wer_ci(
        [list(s.reference) for s in wer.utterances], [list(s.hypothesis) for s in wer.utterances], replications=5000
    )
    low, high = wer.interval
    assert low < wer.wer < high
    assert low == pytest.approx(100 * theirs["ci95min"], abs=0.3)
    assert high == pytest.approx(100 * theirs["ci95max"], abs=0.3)


@pytest.mark.slow
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside = [low <= 10.9 <= high for low, high in (system(0.1, seed, 60).interval for seed in range(200))]
    assert 0.89 < np.mean(inside) < 0.99


def test_equal_systems_do_not_differ() -> None:
    wer = system(0.1, 1)
    comparison = compare_wer(wer, wer)
    assert comparison.difference == 0
    assert comparison.p == 1
    assert not comparison.significant


def test_a_large_difference_is_significant_and_has_its_sign() -> None:
    comparison = compare_wer(system(0.2, 1), system(0.1, 2))
    assert comparison.difference < 0
    assert comparison.significant
    assert comparison.interval[1] < 0
    assert compare_wer(system(0.1, 2), system(0.2, 1)).difference == -comparison.difference


def test_pairs_tell_more_than_two_intervals() -> None:
    one = system(0.1, 1, shared=7)
    better = Wer.from_words(
        {s.utterance: s.reference for s in one.utterances},
        {s.utterance: s.reference if i % 5 == 0 else s.hypothesis for i, s in enumerate(one.utterances)},
    )
    assert one.interval[0] < better.interval[1], "the intervals overlap"
    assert compare_wer(one, better).significant


@pytest.mark.slow
def test_chance_is_called_significant_about_one_time_in_twenty() -> None:
    found = [compare_wer(system(0.1, 2 * i, 80), system(0.1, 2 * i + 1, 80), replicates=1000) for i in range(200)]
    assert 0.01 <= np.mean([comparison.significant for comparison in found]) <= 0.11


def test_other_utterances_or_transcripts_are_refused() -> None:
    one = Wer.from_words({"a": ["X"], "b": ["Y"]}, {})
    with pytest.raises(DataError, match="only one of the two has utterance 'b'"):
        compare_wer(one, Wer.from_words({"a": ["X"]}, {}))
    with pytest.raises(DataError, match="utterance 'b' has two different transcripts"):
        compare_wer(one, Wer.from_words({"a": ["X"], "b": ["Z"]}, {}))


def test_what_was_scored_can_be_read_again(tmp_path: Path) -> None:
    wer = system(0.1, 1, 5)
    wer.save(tmp_path)
    assert Wer.load(tmp_path).utterances == wer.utterances
    assert compare_wer(tmp_path, tmp_path / "utterances.jsonl").difference == 0
    with pytest.raises(DataError, match="no decoding results"):
        Wer.load(tmp_path / "elsewhere")
    (tmp_path / "utterances.jsonl").write_text('{"utterance": 3}\n')
    with pytest.raises(DataError, match="not scored utterances"):
        Wer.load(tmp_path)

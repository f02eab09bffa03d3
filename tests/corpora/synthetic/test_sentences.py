from __future__ import annotations

import random
from collections import Counter

from roundelay.corpora.synthetic import sentences

SENTENCES = [sentences.make_sentence(random.Random(i)) for i in range(5000)]


def test_the_vocabulary_is_small_and_all_of_it_is_used() -> None:
    used = {word for sentence in SENTENCES for word in sentence}
    assert 100 <= len(sentences.vocabulary()) <= 200
    assert used == sentences.vocabulary()


def test_sentences_are_short_and_letters_are_few() -> None:
    words = Counter(word for sentence in SENTENCES for word in sentence)
    letters = sum(count for word, count in words.items() if len(word) == 1)
    assert letters / words.total() < 0.12
    assert min(map(len, SENTENCES)) >= 1
    assert max(map(len, SENTENCES)) <= 14
    assert 3.5 < words.total() / len(SENTENCES) < 6


def test_the_same_seed_says_the_same() -> None:
    assert sentences.make_sentence(random.Random("7 train 3")) == sentences.make_sentence(random.Random("7 train 3"))
    assert len(set(SENTENCES)) > 2000

"""Division of utterances into splits, and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.splits import divide_by_speaker, split_name, utterance_id
from roundelay.errors import DataError


def utterances(num_speakers: int) -> list[Utterance]:
    return [
        Utterance(f"s{speaker}-{i}", Path(f"{i}.wav"), f"s{speaker}", ("YES",))
        for speaker in range(num_speakers)
        for i in range(5)
    ]


def test_no_speaker_is_in_two_splits_and_shares_are_near() -> None:
    divided = divide_by_speaker(utterances(40))
    speakers = {name: {u.speaker for u in found} for name, found in divided.items()}
    assert sum(map(len, speakers.values())) == len(set().union(*speakers.values())) == 40
    assert {name: len(found) for name, found in divided.items()} == {"train": 160, "dev": 20, "test": 20}
    assert divided == divide_by_speaker(utterances(40))


def test_every_split_has_a_speaker_if_there_are_enough() -> None:
    assert all(divide_by_speaker(utterances(3)).values())
    with pytest.raises(DataError, match="2 speakers cannot be divided into train, dev, test .* use at least 3"):
        divide_by_speaker(utterances(2))


def test_ids_begin_with_the_speaker() -> None:
    assert utterance_id("bob", "a b/c") == "bob-a_b-c"
    assert utterance_id("bob", "bob-1") == "bob-1"


def test_speakers_are_divided_in_proportion_whatever_their_order() -> None:
    def spoken(count: int) -> list[Utterance]:
        return [Utterance(f"s{i}-{j}", Path("x"), f"s{i}", ("A",)) for i in range(count) for j in range(5)]

    divided = divide_by_speaker(spoken(100))
    assert {name: len(us) for name, us in divided.items()} == {"train": 400, "dev": 50, "test": 50}
    again = divide_by_speaker(reversed(spoken(100)))
    assert all({u.id for u in divided[name]} == {u.id for u in again[name]} for name in divided)
    assert {name: len(us) for name, us in divide_by_speaker(spoken(3)).items()} == {"train": 5, "dev": 5, "test": 5}


def test_names_of_parts_and_utterances() -> None:
    parts = ("train-clean-5", "dev-clean", "validation", "test-clean", "test-other", "eval")
    assert [split_name(part) for part in parts] == ["train", "dev", "dev", "test", "test-other", "eval"]
    assert utterance_id("ann", "ann/one 1") == "ann-one_1"
    assert utterance_id("bob", "one") == "bob-one"

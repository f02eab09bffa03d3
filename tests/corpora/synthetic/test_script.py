"""Who says what in the synthetic corpus, by the seed and a number alone."""

from __future__ import annotations

import itertools

import pytest

from roundelay.corpora.synthetic.script import (
    SHARES,
    SNRS,
    TAKES_PER_SHARD,
    estimate_seconds,
    list_speakers,
    plan_shards,
    plan_take,
    spoken_text,
)  # fmt: skip


def test_a_take_is_its_seed_split_and_number() -> None:
    assert plan_take(1, "train", 7) == plan_take(1, "train", 7)
    assert plan_take(1, "train", 7).words != plan_take(2, "train", 7).words
    assert plan_take(1, "dev", 7).speaker.split == "dev"


def test_no_speaker_is_in_two_splits() -> None:
    names = [speaker.name for split in SHARES for speaker in list_speakers(split)]
    assert len(set(names)) == len(names)


def test_half_of_the_takes_have_a_noisy_copy_at_each_ratio_in_turn() -> None:
    people = len(list_speakers("dev"))
    takes = [plan_take(0, "dev", number) for number in range(people * 12)]
    assert sum(take.snr is not None for take in takes) == len(takes) // 2
    own = [take.snr for take in takes if take.speaker == takes[0].speaker and take.snr is not None]
    assert {*own} == {*SNRS}
    noisy = next(take for take in takes if take.snr is not None)
    assert noisy.noisy_id == f"{noisy.id}-snr{noisy.snr:02d}"
    assert noisy.num_utterances == 2


def test_shards_follow_each_other_and_share_the_hours() -> None:
    shards = plan_shards(0.5, seed=3)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    for split, share in SHARES.items():
        own = [shard for shard in shards if shard.split == split]
        assert own[0].begin == 0
        assert all(a.end == b.begin for a, b in itertools.pairwise(own))
        assert all(shard.end - shard.begin <= TAKES_PER_SHARD for shard in own)
        takes = [plan_take(3, split, number) for number in range(own[-1].end)]
        seconds = sum(take.num_utterances * estimate_seconds(take) for take in takes)
        assert seconds == pytest.approx(0.5 * share * 3600, abs=20)


def test_the_letter_a_is_not_the_article() -> None:
    assert spoken_text(("A", "B", "ZERO")) == "eigh B zero"

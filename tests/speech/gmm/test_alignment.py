"""Alignments and their agreement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.alignment import Alignment, Alignments
from roundelay.speech.gmm.decision_tree import Tree
from segment_agreement import SegmentAgreement, compare_all_segments, compare_segments

PHONES = ["sil", "a", "b", "c"]


def alignment() -> Alignment:
    """Silence 3 frames, a 4, b 3, silence 3, c 5, with the words of a transcript of two."""
    return Alignment(
        np.array([0, 1, 2, 0, 3], np.int16),
        np.array([-1, 0, 0, -1, 1], np.int32),
        np.array([0, 3, 7, 10, 13, 18], np.int32),
        np.array([0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 1, 2], np.int8),
        np.zeros(0, np.int32),
    ).retie(Tree.monophone(4))


def whole() -> Alignments:
    alignments = Alignments(PHONES)
    alignments.add("u1", ["AB", "C"], alignment())
    alignments.add("u2", ["AB"], "5 frames are too few")
    return alignments


def test_senones_follow_phones_and_states() -> None:
    expected = [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 0, 1, 2, 9, 10, 10, 10, 11]
    senones = whole()["u1"]
    assert senones.tolist() == expected
    assert senones.dtype == np.int32


def test_segments_and_words() -> None:
    alignments = whole()
    assert alignments.segments("u1") == [("sil", 0, 3), ("a", 3, 7), ("b", 7, 10), ("sil", 10, 13), ("c", 13, 18)]
    assert alignments.words("u1") == [("AB", 3, 10), ("C", 13, 18)]


def test_repeated_words_stay_apart() -> None:
    alignments = Alignments(PHONES)
    path = alignment()
    alignments.add("u", ["X", "X"], path)
    assert alignments.words("u") == [("X", 3, 10), ("X", 13, 18)]


def test_failures_are_kept_apart() -> None:
    alignments = whole()
    assert list(alignments) == ["u1"]
    assert len(alignments) == 1
    assert alignments.failures == {"u2": "5 frames are too few"}
    with pytest.raises(KeyError, match="u2 was not aligned: 5 frames"):
        alignments["u2"]


def test_contexts_end_in_silence() -> None:
    contexts = alignment().contexts()
    assert contexts.shape == (18, 4)
    assert contexts[0].tolist() == [0, 0, 1, 0]
    assert contexts[8].tolist() == [1, 2, 0, 1]
    assert contexts[17].tolist() == [0, 3, 0, 2]


def test_files_give_the_same_alignments(tmp_path: Path) -> None:
    alignments = whole()
    alignments.add("u3", ["AB", "C"], alignment())
    alignments.save(tmp_path / "ali.safetensors")
    copy = Alignments.load(tmp_path / "ali.safetensors")
    assert list(copy) == ["u1", "u3"]
    assert copy.failures == alignments.failures
    for utterance in copy:
        assert np.array_equal(copy[utterance], alignments[utterance])
        assert copy.segments(utterance) == alignments.segments(utterance)
        assert copy.words(utterance) == alignments.words(utterance)


def test_no_alignments_are_a_file_too(tmp_path: Path) -> None:
    Alignments(PHONES).save(tmp_path / "empty.safetensors")
    assert len(Alignments.load(tmp_path / "empty.safetensors")) == 0


def test_a_segmentation_agrees_with_itself() -> None:
    segments = whole().segments("u1")
    assert compare_segments(segments, segments) == SegmentAgreement(18, 18, 4, 4)


def test_frames_and_boundaries_are_counted_by_hand() -> None:
    found = [("sil", 0, 4), ("a", 4, 7), ("b", 7, 18)]
    reference = [("sil", 0.0, 1.8), ("a", 1.8, 7.4), ("b", 7.4, 14.0), ("c", 14.0, 18.0)]
    agreement = compare_segments(found, reference)
    # Frames 2 and 3 (a in the reference) and 14 to 17 (c) differ; frame 7 has its middle at 7.5, within b.
    assert (agreement.frames, agreement.same_frames) == (18, 12)
    # a begins 2.2 frames off, b 0.4, and c is not there.
    assert (agreement.boundaries, agreement.near_boundaries) == (3, 1)
    assert compare_segments(found, reference, tolerance=2.5).near_boundaries == 2
    assert agreement.frame_share == pytest.approx(12 / 18)
    assert agreement.boundary_share == pytest.approx(1 / 3)


def test_a_boundary_needs_the_same_phone() -> None:
    assert compare_segments([("a", 0, 5), ("b", 5, 10)], [("a", 0, 5), ("c", 5, 10)]).near_boundaries == 0


def test_a_beginning_is_used_once() -> None:
    found = [("a", 0, 4), ("b", 4, 10)]
    reference = [("a", 0, 3), ("b", 3, 4), ("a", 4, 5), ("b", 5, 10)]
    assert compare_segments(found, reference).near_boundaries == 1


def test_names_are_mapped_and_equal_neighbours_joined() -> None:
    found = [("t", 0, 6), ("a", 6, 10)]
    reference = [("cl", 0, 3), ("T", 3, 6), ("a", 6, 10)]
    assert compare_segments(found, reference, names={"cl": "t", "T": "t"}) == SegmentAgreement(10, 10, 1, 1)


def test_groups_are_summed() -> None:
    one, two = [("a", 0, 5), ("b", 5, 10)], [("a", 0, 8), ("b", 8, 10)]
    groups = compare_all_segments([("clean", one, one), ("noisy", one, two), ("clean", two, two)])
    assert groups == {"clean": SegmentAgreement(20, 20, 2, 2), "noisy": SegmentAgreement(10, 7, 1, 0)}


def test_empty_segmentations_are_refused() -> None:
    with pytest.raises(DataError, match="without segments"):
        compare_segments([], [("a", 0, 1)])
    assert SegmentAgreement().frame_share == 0.0

"""The agreement of two segmentations of speech: frames with the same phone, phones that begin at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roundelay.errors import DataError


@dataclass(frozen=True, slots=True)
class SegmentAgreement:
    """Agreement of segmentations: frames with the same phone, and phones that begin at the same time."""

    frames: int = 0
    same_frames: int = 0
    boundaries: int = 0
    near_boundaries: int = 0

    def __add__(self, other: SegmentAgreement) -> SegmentAgreement:
        return SegmentAgreement(
            self.frames + other.frames,
            self.same_frames + other.same_frames,
            self.boundaries + other.boundaries,
            self.near_boundaries + other.near_boundaries,
        )

    @property
    def frame_share(self) -> float:
        """Return the share of frames with the same phone, from 0 to 1."""
        return self.same_frames / self.frames if self.frames else 0.0

    @property
    def boundary_share(self) -> float:
        """Return the share of the reference's boundaries that were found within the tolerance, from 0 to 1."""
        return self.near_boundaries / self.boundaries if self.boundaries else 0.0


TimedLabel = tuple[str, float, float]  # name, begin, end, in frames; need not fall on frames


def compare_segments(
    found: Sequence[TimedLabel],
    reference: Sequence[TimedLabel],
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float = 2.0,
) -> SegmentAgreement:
    """Compare two segmentations of an utterance, times in frames (a reference in seconds is divided by the shift).

    ``names`` maps phones of both sides to common ones; other phones keep their names.  Frames that both cover are
    compared at their middle.  A boundary is the begin of a phone of the reference, except the first.  It is near if the
    same phone begins in ``found`` within ``tolerance`` frames; each begin is used once.
    """
    common = names or {}
    ours = _joined([(common.get(name, name), begin, end) for name, begin, end in found])
    theirs = _joined([(common.get(name, name), begin, end) for name, begin, end in reference])
    if not ours or not theirs:
        raise DataError("compare: a segmentation without segments agrees with nothing; leave the utterance out")
    length = int(min(ours[-1][2], theirs[-1][2]))
    same = sum(a == b for a, b in zip(_labels(ours, length), _labels(theirs, length), strict=True))
    near = _match(ours[1:], theirs[1:], tolerance)
    return SegmentAgreement(length, same, len(theirs) - 1, near)


def compare_all_segments(
    pairs: Iterable[tuple[str, Sequence[TimedLabel], Sequence[TimedLabel]]],
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float = 2.0,
) -> dict[str, SegmentAgreement]:
    """Sum the agreement of many utterances by group, such as the noise level: (group, found, reference) each."""
    groups: dict[str, SegmentAgreement] = {}
    for group, found, reference in pairs:
        agreement = compare_segments(found, reference, names=names, tolerance=tolerance)
        groups[group] = groups.get(group, SegmentAgreement()) + agreement
    return groups


def _joined(segments: Sequence[TimedLabel]) -> list[TimedLabel]:
    """Join neighbours with the same name, and drop empty segments."""
    joined: list[TimedLabel] = []
    for name, begin, end in segments:
        if end <= begin:
            continue
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1], end)
        else:
            joined.append((name, begin, end))
    return joined


def _labels(segments: Sequence[TimedLabel], length: int) -> list[str]:
    ends = np.array([end for _, _, end in segments])
    index = np.minimum(np.searchsorted(ends, np.arange(length) + 0.5, side="right"), len(segments) - 1)
    return [segments[i][0] for i in index]


def _match(ours: Sequence[TimedLabel], theirs: Sequence[TimedLabel], tolerance: float) -> int:
    """Count pairs of begins with the same name; taking the earliest that fits gives the most pairs."""
    times: dict[str, list[float]] = {}
    for name, begin, _ in ours:
        times.setdefault(name, []).append(begin)
    near = 0
    for name, begin, _ in theirs:
        waiting = times.get(name, [])
        while waiting and waiting[0] < begin - tolerance:
            waiting.pop(0)
        if waiting and waiting[0] <= begin + tolerance:
            waiting.pop(0)
            near += 1
    return near

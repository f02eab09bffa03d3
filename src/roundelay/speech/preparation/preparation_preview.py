"""What preparation would do, and about how long it takes, without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundelay.corpora.data_directory import Utterance
from roundelay.formats import audio_files

STAGE_SECONDS = {
    "features": 4.0,
    "hmm": 180.0,
    "alignment": 28.0,
    "graph": 2.0,
    "adapted": 55.0,
    "ivectors": 40.0,
}
"""Seconds of one core per hour of speech, rounded, as measured on AN4; other stages take next to nothing."""
BASE_SECONDS = {"features": 3.0, "hmm": 5.0, "graph": 2.0, "adapted": 5.0}
"""Seconds that a stage takes with any corpus: to start processes, to read."""


@dataclass(frozen=True)
class PreparationPreview:
    """The stages that are missing and done, and the corpus."""

    splits: dict[str, tuple[int, float]]
    """Utterances and hours."""
    missing: list[str]
    done: list[str]
    seconds: float
    """About how long the missing stages take."""
    jobs: int


def hours_of(utterances: Sequence[Utterance]) -> float:
    """Return the hours of some utterances, by the headers of their files."""
    seconds, whole = 0.0, dict[str, float]()
    for each in utterances:
        if each.end is not None:
            seconds += each.end - (each.begin or 0.0)
            continue
        name = str(each.audio)
        if name not in whole:
            whole[name] = audio_files.info(each.audio).seconds
        seconds += whole[name] - (each.begin or 0.0)
    return seconds / 3600


def expected_seconds(missing: Sequence[str], splits: Mapping[str, tuple[int, float]], jobs: int) -> float:
    """Return about how long stages take with so many jobs."""
    hours = sum(hours for _, hours in splits.values())
    work = sum(STAGE_SECONDS.get(name, 0.0) for name in missing) * hours
    return sum(BASE_SECONDS.get(name, 0.0) for name in missing) + work / jobs

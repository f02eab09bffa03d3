"""Ids and splits for corpora without their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from roundelay.corpora.data_directory import Utterance, write_split
from roundelay.errors import DataError
from roundelay.files import make_inside

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


def divide_by_speaker(
    utterances: Iterable[Utterance],
    shares: Mapping[str, float] = SHARES,
    *,
    by_recording: bool = False,
) -> dict[str, list[Utterance]]:
    """Divide utterances into splits so that no speaker is in two of them, or no file if ``by_recording``.

    Speakers are taken in the order of a hash of their names, which is independent of what they say.  Each goes to the
    split that lacks most of its share.
    """
    groups: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        groups.setdefault(utterance.audio.stem if by_recording else utterance.speaker, []).append(utterance)
    if len(groups) < len(shares):
        raise DataError(
            f"{len(groups)} speakers cannot be divided into {', '.join(shares)} without sharing one;"
            f" use at least {len(shares)}"
        )
    total = sum(map(len, groups.values()))
    divided: dict[str, list[Utterance]] = {name: [] for name in shares}
    order = sorted(groups, key=lambda name: hashlib.sha256(name.encode()).digest())
    for left, name in zip(range(len(order), 0, -1), order, strict=True):
        empty = [split for split in shares if not divided[split]]
        wanting = empty if len(empty) >= left else list(shares)
        target = max(wanting, key=lambda split: shares[split] - len(divided[split]) / total)
        divided[target] += groups[name]
    return divided


def write_splits(out: Path, divided: Mapping[str, Iterable[Utterance]]) -> None:
    """Write each split that has utterances."""
    for name, utterances in divided.items():
        if some := list(utterances):
            write_split(make_inside(out, name, what="split"), some)


def split_name(part: str) -> str:
    """Return the split of a part by its usual name: train-clean-5 is train, dev-clean is dev; others keep theirs."""
    if part.startswith("train"):
        return "train"
    known = {"dev-clean": "dev", "dev-clean-2": "dev", "valid": "dev", "validation": "dev", "test-clean": "test"}
    return known.get(part, part)


def utterance_id(speaker: str, name: str) -> str:
    """Make an id from speaker and file name: no blanks, and the speaker first, as Kaldi requires."""
    plain = "_".join(name.split()).replace("/", "-")
    return plain if plain.startswith(f"{speaker}-") else f"{speaker}-{plain}"

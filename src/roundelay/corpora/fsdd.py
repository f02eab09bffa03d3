"""The Free Spoken Digit Dataset: single English digits, six speakers, 3000 recordings at 8 kHz, 0.4 hours.

By Zohar Jackson and contributors, github.com/Jakobovski/free-spoken-digit-dataset, under CC BY-SA 4.0.  Files are
``recordings/{digit}_{speaker}_{number}.wav``.  The corpus's own split has the same speakers on both sides; here theo is
``dev``, yweweler is ``test`` and the others are ``train``.
"""

from __future__ import annotations

import re
from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus, Download
from roundelay.corpora.splits import write_splits
from roundelay.errors import DataError

_DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
_NAME = re.compile(r"^(\d)_([^_]+)_(\d+)$")
_SPLITS = {"theo": "dev", "yweweler": "test"}


def import_splits(source: Path, out: Path) -> None:
    """Import the folder ``recordings``."""
    files = sorted(source.rglob("recordings/*.wav"))
    if not files:
        raise DataError(f"{source}: not FSDD: there is no recordings/*.wav in it")
    divided: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for file in files:
        match = _NAME.match(file.stem)
        if match is None:
            raise DataError(f"{file}: the name is not digit_speaker_number.wav")
        digit, speaker, number = int(match[1]), match[2], int(match[3])
        utterance = Utterance(f"{speaker}-{digit}-{number:02d}", file, speaker, (_DIGITS[digit],))
        divided[_SPLITS.get(speaker, "train")].append(utterance)
    write_splits(out, divided)


CORPUS = Corpus(
    name="fsdd",
    summary="single digits; 6 speakers, 0.4 h at 8 kHz",
    licence="CC BY-SA 4.0",
    import_splits=import_splits,
    parts={"all": Download("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz")},
    default_parts=("all",),
)

"""The yes/no corpus: one man says yes or no in Hebrew, eight times per file; 60 files, 6 minutes at 8 kHz.

openslr.org/1, recorded for the Kaldi project.  The file's name is its transcript:
``0_1_1_0_1_0_0_1.wav``, 1 for yes (*ken*) and 0 for no (*lo*).  There is only one speaker, so the splits share him:
use this corpus only for first experiments.
"""

from __future__ import annotations

import re
from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus, Download
from roundelay.corpora.splits import write_splits
from roundelay.errors import DataError
from roundelay.files import write_text

_NAME = re.compile(r"^[01](_[01])*$")


def import_splits(source: Path, out: Path) -> None:
    """Import ``waves_yesno``: half for training, a sixth for dev, a third for test."""
    files = sorted(file for file in source.rglob("*.wav") if not file.name.startswith("."))
    for file in files:
        if not _NAME.match(file.stem):
            raise DataError(f"{file}: the name is not of ones and zeros like 0_1_1_0_1_0_0_1.wav")
    if len(files) < 3:
        raise DataError(f"{source}: not the yes/no corpus: {len(files)} files like 0_1_1_0_1_0_0_1.wav in it")
    utterances = [
        Utterance(f"ken-{file.stem}", file, "ken", tuple("YES" if bit == "1" else "NO" for bit in file.stem.split("_")))
        for file in files
    ]
    begin, end = len(files) // 2, len(files) * 2 // 3
    write_splits(out, {"train": utterances[:begin], "dev": utterances[begin:end], "test": utterances[end:]})
    write_text(out / "lexicon.txt", "NO L OW\nYES K EH N\n")


CORPUS = Corpus(
    name="yesno",
    summary="yes and no in Hebrew; 1 speaker, 6 minutes at 8 kHz",
    licence="see openslr.org/1",
    import_splits=import_splits,
    parts={
        "all": Download(
            "https://www.openslr.org/resources/1/waves_yesno.tar.gz",
            "c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73",
        )
    },
    default_parts=("all",),
)

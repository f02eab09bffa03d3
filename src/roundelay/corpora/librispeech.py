"""LibriSpeech: 1000 hours of read English audio books at 16 kHz, in parts, and its small sister Mini LibriSpeech.

By Vassil Panayotov and others (ICASSP 2015), openslr.org/12 and openslr.org/31, under CC BY 4.0.  A part has
``SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac`` and ``SPEAKER-CHAPTER.trans.txt`` with a line for each.  Any parts may
be there: all that begin with train become ``train``, dev-clean (or dev-clean-2) ``dev``, test-clean ``test``; the
others keep their names.
"""

from __future__ import annotations

from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus, Download
from roundelay.corpora.splits import split_name, write_splits
from roundelay.errors import DataError
from roundelay.formats.text_tables import read_numbered


def import_splits(source: Path, out: Path) -> None:
    """Import all parts below a folder."""
    divided: dict[str, list[Utterance]] = {}
    for transcripts in sorted(source.rglob("*.trans.txt")):
        part = transcripts.parent.parent.parent.name
        divided.setdefault(split_name(part), []).extend(_chapter(transcripts))
    if not divided:
        raise DataError(f"{source}: not LibriSpeech: there is no PART/SPEAKER/CHAPTER/*.trans.txt in it")
    write_splits(out, divided)


def _chapter(transcripts: Path) -> list[Utterance]:
    speaker = transcripts.parent.parent.name
    untold = {file.stem for file in transcripts.parent.glob("*.flac")}
    found = []
    for name, (words, number) in read_numbered(transcripts).items():
        audio = transcripts.parent / f"{name}.flac"
        if name not in untold:
            raise DataError(f"{transcripts}:{number}: the audio of {name!r} is not there: {audio}")
        untold.remove(name)
        found.append(Utterance(name, audio, speaker, tuple(words.split())))
    if untold:
        raise DataError(f"{transcripts}: no transcript of {min(untold)!r}, whose audio is there")
    return found


# sha256 as in the loaders of torchaudio and mlx-data; for Mini LibriSpeech none is published
_SUMS = {
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}
_MINI = ("dev-clean-2", "train-clean-5")

CORPUS = Corpus(
    name="librispeech",
    summary="read audio books; 1000 h in parts, and Mini LibriSpeech (5 h)",
    licence="CC BY 4.0",
    import_splits=import_splits,
    parts={
        **{part: Download(f"https://www.openslr.org/resources/12/{part}.tar.gz", _SUMS[part]) for part in _SUMS},
        **{part: Download(f"https://www.openslr.org/resources/31/{part}.tar.gz") for part in _MINI},
    },
    default_parts=("train-clean-5", "dev-clean-2", "test-clean"),
)

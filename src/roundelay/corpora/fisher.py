"""Fisher English, parts 1 and 2: 2000 hours of telephone conversations at 8 kHz, two channels.

From the Linguistic Data Consortium, under its licence (LDC2004S13, LDC2005S13, LDC2004T19, LDC2005T19); it cannot be
downloaded.  Below the folder there must be audio ``fe_03_00001.sph`` in folders of any name, and transcripts
``fe_03_00001.txt``::

    # fe_03_00001.sph
    # Transcribed at the LDC

    7.38 8.78 A: an- so the topic is

If there is a ``*_calldata.tbl`` (columns CALL_ID, APIN, BPIN), speakers are persons.  Otherwise each side of a call is
a speaker, and splits share no call.  Words are in capitals.  Marks such as [laughter] and utterances with doubtful
words, ``((...))``, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus
from roundelay.corpora.splits import divide_by_speaker, write_splits
from roundelay.corpora.switchboard import find_audio, parse_times, timed_id
from roundelay.errors import DataError
from roundelay.formats.text_tables import read_lines

_LINE = re.compile(r"^(\S+)\s+(\S+)\s+([AB])\s*:\s*(.*)$")
_SHARES = {"train": 0.98, "dev": 0.01, "test": 0.01}


def import_splits(source: Path, out: Path) -> None:
    """Import all calls below a folder."""
    transcripts = sorted(source.rglob("fe_03_*.txt"))
    if not transcripts:
        raise DataError(f"{source}: not Fisher: there is no fe_03_*.txt in it")
    audio, persons = find_audio(source), _persons(source)
    utterances = [utterance for file in transcripts for utterance in _call(file, audio, persons)]
    write_splits(out, divide_by_speaker(utterances, _SHARES, by_recording=not persons))


def _persons(source: Path) -> dict[str, str]:
    """Map each side of a call, such as ``00001A``, to the number of a person."""
    found = {}
    for table in sorted(source.rglob("*_calldata.tbl")):
        columns = {"CALL_ID": 0, "APIN": 5, "BPIN": 10}
        for number, line in read_lines(table):
            fields = [field.strip() for field in line.split(",")]
            if fields[0] == "CALL_ID":
                columns = {name: fields.index(name) for name in columns if name in fields}
                continue
            if len(columns) < 3 or len(fields) <= max(columns.values()):
                raise DataError(f"{table}:{number}: columns CALL_ID, APIN and BPIN are wanted, not {line[:60]!r}")
            call = fields[columns["CALL_ID"]].zfill(5)
            found[f"{call}A"], found[f"{call}B"] = fields[columns["APIN"]], fields[columns["BPIN"]]
    return found


def _call(file: Path, audio: dict[str, Path], persons: dict[str, str]) -> Iterator[Utterance]:
    call = file.stem.rpartition("_")[2]
    recording = audio.get(file.stem.lower())
    if recording is None:
        raise DataError(f"{file}: the audio of the call ({file.stem}.sph) is not there")
    for number, line in read_lines(file):
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise DataError(f"{file}:{number}: 'begin end A: words' is wanted, not {line[:60]!r}")
        side, text = match[3], match[4]
        words = tuple(word.upper() for word in text.split() if not word.startswith("["))
        if not words or "((" in text:
            continue
        begin, end = parse_times(match[1], match[2], f"{file}:{number}")
        person = persons.get(f"{call}{side}")
        speaker = f"fe{person}" if person else f"{file.stem}-{side}"
        name = f"{speaker}-{call}{side}" if person else speaker
        yield Utterance(timed_id(name, begin, end), recording, speaker, words, "AB".index(side), begin, end)


CORPUS = Corpus(
    name="fisher",
    summary="telephone conversations, 2000 h at 8 kHz",
    licence="LDC (LDC2004S13, LDC2005S13, LDC2004T19, LDC2005T19)",
    import_splits=import_splits,
)

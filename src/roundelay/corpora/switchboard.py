"""Switchboard-1 (300 hours of telephone conversations, 8 kHz) with the MSU transcripts, and the Hub5'00 test set.

From the Linguistic Data Consortium, under its licence; it cannot be downloaded.  Below the folder there must be

- Switchboard-1 release 2 (LDC97S62): ``sw02001.sph`` ..., two channels, mu-law, in folders of any name;
- the transcripts of Mississippi State University: ``20/2001/sw2001A-ms98-a-trans.text``, lines
  ``sw2001A-ms98-a-0001 0.000000 0.977625 [silence]``;
- ``conv.tab`` (optional): ``2001,...,CALLER-OF-SIDE-A,CALLER-OF-SIDE-B,...``; with it speakers are persons, and train
  and dev share none; without it each side of a conversation is a speaker, and train and dev share no conversation;
- Hub5'00 (LDC2002S09, LDC2002T43; optional): ``english/*.sph`` and ``reference/hub5e00.english.000405.stm``; its
  Switchboard half is ``test``, its CallHome half ``test-callhome``.

Words are in capitals.  Marks of noise, laughter and asides are left out; of a mispronounced ``[spoken/meant]`` the
spoken word is kept, of a broken-off ``abs[olute]-`` what was said, ``ABS-``; utterances without words are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus
from roundelay.corpora.splits import divide_by_speaker, write_splits
from roundelay.errors import DataError
from roundelay.formats.text_tables import read_lines

_CHANNELS = {"A": 0, "B": 1}
_LINE = re.compile(r"^sw(\d{4})([AB])-\S+\s+(\S+)\s+(\S+)\s*(.*)$")
_NOISES = {"[silence]", "[noise]", "[laughter]", "[vocalized-noise]", "<b_aside>", "<e_aside>"}


def import_splits(source: Path, out: Path) -> None:
    """Import those of Switchboard-1 and Hub5'00 that are below the folder."""
    audio = find_audio(source)
    divided: dict[str, list[Utterance]] = {}
    transcripts = sorted(source.rglob("sw????[AB]-ms98-a-trans.text"))
    if transcripts:
        callers = _callers(source)
        utterances = [utterance for file in transcripts for utterance in _side(file, audio, callers)]
        divided |= divide_by_speaker(utterances, {"train": 0.98, "dev": 0.02}, by_recording=not callers)
    for stm in sorted(source.rglob("hub5e00.english*.stm"))[:1]:
        divided |= _hub5(stm, audio)
    if not divided:
        raise DataError(
            f"{source}: not Switchboard: neither sw2001A-ms98-a-trans.text (or others) nor hub5e00...stm in it"
        )
    write_splits(out, divided)


def find_audio(source: Path) -> dict[str, Path]:
    """Map names in lower case to the SPHERE files below a folder."""
    return {file.stem.lower(): file for file in sorted(source.rglob("*")) if file.suffix.lower() == ".sph"}


def _callers(source: Path) -> dict[str, str]:
    """Map each side of a conversation, such as ``2001A``, to the number of a person."""
    found = {}
    for table in sorted(source.rglob("conv.tab"))[:1]:
        for number, line in read_lines(table):
            fields = [field.strip().strip('"') for field in line.split(",")]
            if len(fields) < 4:
                raise DataError(
                    f"{table}:{number}: 'conversation,...,caller A,caller B,...' is wanted, not {line[:60]!r}"
                )
            found[f"{fields[0]}A"], found[f"{fields[0]}B"] = fields[2], fields[3]
    return found


def _side(file: Path, audio: dict[str, Path], callers: dict[str, str]) -> Iterator[Utterance]:
    for number, line in read_lines(file):
        match = _LINE.match(line)
        if match is None:
            raise DataError(f"{file}:{number}: 'sw2001A-ms98-a-0001 begin end words' is wanted, not {line[:60]!r}")
        conversation, side, text = match[1], match[2], match[5]
        words = tuple(word for raw in text.split() if (word := clean_word(raw)))
        if not words:
            continue
        recording = audio.get(f"sw0{conversation}") or audio.get(f"sw{conversation}")
        if recording is None:
            raise DataError(
                f"{file}:{number}: the audio of conversation {conversation} (sw0{conversation}.sph) is not there"
            )
        begin, end = parse_times(match[3], match[4], f"{file}:{number}")
        person = callers.get(f"{conversation}{side}")
        speaker = f"sw{person}" if person else f"sw0{conversation}-{side}"
        name = f"{speaker}-{conversation}{side}" if person else speaker
        yield Utterance(timed_id(name, begin, end), recording, speaker, words, _CHANNELS[side], begin, end)


def timed_id(name: str, begin: float, end: float) -> str:
    """Make an utterance's id of a name and its times in hundredths of a second."""
    return f"{name}_{round(begin * 100):06d}-{round(end * 100):06d}"


def parse_times(begin: str, end: str, where: str) -> tuple[float, float]:
    """Read a begin and an end in seconds."""
    try:
        first, last = float(begin), float(end)
    except ValueError as error:
        raise DataError(f"{where}: {begin!r} and {end!r} are not times") from error
    if not 0 <= first < last < 1e6:
        raise DataError(f"{where}: an utterance from {begin} s to {end} s")
    return first, last


def clean_word(raw: str) -> str:
    """Return the spoken word in capitals for a transcriber's word; an empty text for a mark that is no word."""
    if raw.lower() in _NOISES:
        return ""
    word = re.sub(r"^\[laughter-(.+)\]$", r"\1", raw, flags=re.IGNORECASE)
    word = re.sub(r"^\[(.+)/.+\](-?)$", r"\1\2", word)  # [it'n/isn't]
    word = re.sub(r"^-?\[[^][]+\](.+)$", r"-\1", word)  # -[an]y
    word = re.sub(r"^(.+)\[[^][]+\]-?$", r"\1-", word)  # abs[olute]-
    word = re.sub(r"^\{(.+)\}$", r"\1", word)  # {yuppiedom}, a coinage
    word = re.sub(r"_\d", "", word)  # about_1, a variant
    return "" if word.startswith(("[", "<")) else word.upper()


def _hub5(stm: Path, audio: dict[str, Path]) -> dict[str, list[Utterance]]:
    """Read ``en_4156 A en_4156_A 301.85 302.48 <O,en,F,en-F> WORDS``."""
    divided: dict[str, list[Utterance]] = {"test": [], "test-callhome": []}
    for number, line in read_lines(stm):
        if line.startswith(";;") or "IGNORE_TIME_SEGMENT" in line.upper():
            continue
        fields = line.split()
        if len(fields) < 6 or fields[1] not in _CHANNELS or not fields[5].startswith("<"):
            raise DataError(f"{stm}:{number}: 'file A speaker begin end <labels> words' is wanted, not {line[:60]!r}")
        words = tuple(word for raw in fields[6:] if (word := _scored(raw)))
        if not words:
            continue
        recording = audio.get(fields[0].lower())
        if recording is None:
            raise DataError(f"{stm}:{number}: the audio of {fields[0]!r} ({fields[0]}.sph) is not there")
        begin, end = parse_times(fields[3], fields[4], f"{stm}:{number}")
        speaker = f"{fields[0]}-{fields[1]}"
        utterance = Utterance(
            timed_id(speaker, begin, end), recording, speaker, words, _CHANNELS[fields[1]], begin, end
        )
        divided["test" if fields[0].lower().startswith("sw") else "test-callhome"].append(utterance)
    return divided


def _scored(raw: str) -> str:
    """Remove scoring marks: ``(UH)`` is optional for a recogniser, but it is a spoken word."""
    word = clean_word(raw.strip("()"))
    return "UH" if word == "%HESITATION" else word


CORPUS = Corpus(
    name="switchboard",
    summary="telephone conversations, 300 h at 8 kHz, and the Hub5'00 test set",
    licence="LDC (LDC97S62, LDC2002S09, LDC2002T43)",
    import_splits=import_splits,
)

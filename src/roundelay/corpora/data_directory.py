"""Kaldi-style data directories: the common layout of all corpora.

A corpus is a folder with one subfolder per split (``train``, ``dev``, ``test``, perhaps more), or a single split.  A
split contains

========== =========================================================================================================
wav.scp    recording and its audio: a path, or a usual command that is read directly (see ``wav_scp``)
text       utterance and its words
utt2spk    utterance and its speaker
segments   (optional) utterance, recording, begin and end in seconds; without it each recording is one utterance
========== =========================================================================================================

and perhaps ``reference.ctm``, ``utt2snr``, ``utt2clean``.  Beside the splits there may be ``lexicon.txt``,
``lm/*.arpa`` and ``SHA256SUMS``.  A relative audio path counts from the folder of its ``wav.scp``, or if it is not
there, from a parent of that folder.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from roundelay.corpora import wav_scp
from roundelay.errors import DataError
from roundelay.formats.text_tables import find_upwards, read_numbered, read_table, write_table

MAIN_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Utterance:
    """Words of one speaker and their samples; ``begin`` and ``end`` in seconds, None for the whole file."""

    id: str
    audio: Path
    speaker: str
    words: tuple[str, ...]
    channel: int = 0
    begin: float | None = None
    end: float | None = None


def find_splits(folder: Path) -> dict[str, Path]:
    """Find the splits of a corpus, train, dev and test first; a folder that is a single split is called ``all``."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; a corpus is a folder with train, dev and test in it")
    found = {child.name: child for child in sorted(folder.iterdir()) if (child / "wav.scp").is_file()}
    if any(name in found for name in MAIN_SPLITS):
        return {name: found[name] for name in sorted(found, key=_main_first)}
    if (folder / "wav.scp").is_file():
        return {"all": folder}
    if found:
        return found
    raise DataError(f"{folder}: no corpus here: neither wav.scp nor train, dev or test with a wav.scp in them")


def _main_first(name: str) -> tuple[int, str]:
    return (MAIN_SPLITS.index(name) if name in MAIN_SPLITS else len(MAIN_SPLITS), name)


def read_split(folder: Path) -> list[Utterance]:
    """Read a split's utterances, sorted by id; raise if the tables are incomplete or do not match."""
    folder = Path(folder)
    recordings = _recordings(folder)
    segments = _segments(folder, recordings)
    text, speakers = read_table(folder / "text"), read_table(folder / "utt2spk")
    _match(folder, "text", set(text), set(segments))
    _match(folder, "utt2spk", set(speakers), set(segments))
    return [_utterance(folder, name, segments[name], text[name], speakers[name]) for name in sorted(segments)]


def _utterance(folder: Path, name: str, segment: Utterance, words: str, speaker: str) -> Utterance:
    if not words:
        raise DataError(f"{folder / 'text'}: utterance {name!r} has no words; leave it out, or write what is said")
    if not speaker or " " in speaker:
        raise DataError(f"{folder / 'utt2spk'}: utterance {name!r} needs one speaker, not {speaker!r}")
    return Utterance(name, segment.audio, speaker, tuple(words.split()), segment.channel, segment.begin, segment.end)


def _recordings(folder: Path) -> dict[str, wav_scp.Source]:
    """Read ``wav.scp`` and find each path on the disk."""
    scp = folder / "wav.scp"
    found: dict[str, wav_scp.Source] = {}
    for name, (entry, number) in read_numbered(scp).items():
        source = wav_scp.parse(entry, f"{scp}:{number}")
        path = find_upwards(source.path, folder)
        if path is None:
            raise DataError(f"{scp}:{number}: the audio of {name!r} is not there: {source.path}")
        found[name] = wav_scp.Source(path, source.channel)
    if not found:
        raise DataError(f"{scp}: no recordings in it")
    return found


def _segments(folder: Path, recordings: dict[str, wav_scp.Source]) -> dict[str, Utterance]:
    """Return utterances with audio, channel and times, still without words and speaker."""
    table = folder / "segments"
    if not table.is_file():
        return {name: Utterance(name, source.path, "", (), source.channel) for name, source in recordings.items()}
    found = {}
    for name, (value, number) in read_numbered(table).items():
        recording, begin, end = _times(value, f"{table}:{number}", name)
        if recording not in recordings:
            raise DataError(
                f"{table}:{number}: utterance {name!r} is cut from {recording!r}, which wav.scp does not have"
            )
        source = recordings[recording]
        found[name] = Utterance(name, source.path, "", (), source.channel, begin, end)
    return found


def _times(value: str, where: str, name: str) -> tuple[str, float, float | None]:
    fields = value.split()
    try:
        recording, begin, end = fields[0], float(fields[1]), float(fields[2])
    except (IndexError, ValueError) as error:
        raise DataError(f"{where}: {name!r} needs a recording, a begin and an end in seconds, not {value!r}") from error
    if not math.isfinite(begin) or not math.isfinite(end) or begin < 0 or (end <= begin and end != -1):
        raise DataError(f"{where}: {name!r} runs from {begin:g} s to {end:g} s; the end must come after the begin")
    return recording, begin, None if end == -1 else end  # -1 is Kaldi's "to the end of the recording"


def _match(folder: Path, name: str, listed: set[str], with_audio: set[str]) -> None:
    """Raise if the utterances of a table are not those that have audio."""
    if silent := sorted(listed - with_audio):
        raise DataError(f"{folder / name}: {_some(silent)} no audio; add it to wav.scp, or leave the line out")
    if missing := sorted(with_audio - listed):
        source = "segments" if (folder / "segments").is_file() else "wav.scp"
        raise DataError(f"{folder / source}: {_some(missing)} no line in {name}; add one, or leave the audio out")


def _some(ids: list[str]) -> str:
    return f"utterance {ids[0]!r} has" if len(ids) == 1 else f"utterance {ids[0]!r} and {len(ids) - 1} more have"


def write_split(folder: Path, utterances: Iterable[Utterance]) -> None:
    """Write a split's tables; paths of audio inside the corpus (the folder's parent) are relative to it."""
    folder = Path(folder)
    utterances = sorted(utterances, key=lambda utterance: utterance.id)
    for before, after in itertools.pairwise(utterances):
        if before.id == after.id:
            raise DataError(f"{folder}: utterance {after.id!r} comes twice, from {before.audio} and {after.audio}")
    folder.mkdir(parents=True, exist_ok=True)
    cut = any(utterance.begin is not None for utterance in utterances)
    recordings = _write_segments(folder, utterances) if cut else {u.id: (u.audio, u.channel) for u in utterances}
    write_table(folder / "utt2spk", ((u.id, u.speaker) for u in utterances))
    write_table(folder / "text", ((u.id, " ".join(u.words)) for u in utterances))
    # wav.scp comes last: a folder without it is no split, so an interrupted import is not taken for one
    write_table(folder / "wav.scp", ((name, _entry(folder, *source)) for name, source in recordings.items()))


def _write_segments(folder: Path, utterances: list[Utterance]) -> dict[str, tuple[Path, int]]:
    """Write ``segments`` and return their recordings."""
    names: dict[tuple[Path, int], str] = {}
    recordings: dict[str, tuple[Path, int]] = {}
    rows = []
    for utterance in utterances:
        source = utterance.audio, utterance.channel
        if source not in names:
            stem = "_".join(utterance.audio.stem.split())
            name = stem if source[1] == 0 else f"{stem}-{source[1]}"
            while name in recordings:
                name += "+"
            names[source] = name
            recordings[name] = source
        end = -1 if utterance.end is None else utterance.end
        rows.append((utterance.id, f"{names[source]} {utterance.begin or 0:.3f} {end:.3f}"))
    write_table(folder / "segments", rows)
    return recordings


def _entry(folder: Path, audio: Path, channel: int) -> str:
    corpus = folder.absolute().parent
    audio = audio.absolute()
    path = str(audio.relative_to(corpus) if audio.is_relative_to(corpus) else audio)
    if channel == 0 and not path.endswith("|") and path == path.strip():
        return path
    # a command that Kaldi can run and that ``wav_scp`` reads directly
    program = "sph2pipe -f wav -p -c" if audio.suffix.lower() == ".sph" else ""
    quoted = shlex.quote(path)
    return f"{program} {channel + 1} {quoted} |" if program else f"sox {quoted} -t wav - remix {channel + 1} |"

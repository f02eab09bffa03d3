"""Manifests of lhotse: JSON lines (``.jsonl`` or ``.jsonl.gz``) of recordings and supervisions, or of cuts.

Files are named as lhotse's recipes name them, ``librispeech_recordings_train-clean-5.jsonl.gz``: what follows
``recordings_``, ``supervisions_`` or ``cuts_`` is the part, and parts become splits by the rules of ``split_name``.  A
single part without a name is divided by speakers.  Relative audio paths count from the manifest's folder and its
parents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.corpora import wav_scp
from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus
from roundelay.corpora.splits import divide_by_speaker, split_name, write_splits
from roundelay.errors import DataError
from roundelay.formats.text_tables import find_upwards, read_lines

_NAME = re.compile(r"^(?:.*_)?(recordings|supervisions|cuts)(?:_(.+))?\.jsonl(?:\.gz)?$")
Line = tuple[dict[str, Any], str]
"""An object, and the file and line it is from."""


def import_splits(source: Path, out: Path) -> None:
    """Import all manifests of a folder."""
    parts: dict[str, dict[str, Path]] = {}
    for file in sorted(source.iterdir()):
        if match := _NAME.match(file.name):
            parts.setdefault(match[2] or "", {})[match[1]] = file
    divided: dict[str, list[Utterance]] = {}
    for part, files in parts.items():
        divided.setdefault(split_name(part), []).extend(_part(files, source))
    if not divided:
        raise DataError(f"{source}: no manifests: neither *recordings*.jsonl and *supervisions*.jsonl nor *cuts*.jsonl")
    write_splits(out, divide_by_speaker(divided[""]) if list(divided) == [""] else divided)


def _part(files: dict[str, Path], source: Path) -> Iterator[Utterance]:
    if "supervisions" in files and "recordings" in files:
        recordings = {_text(line, "id"): line for line in _lines(files["recordings"])}
        untold = set(recordings)
        for line in _lines(files["supervisions"]):
            recording = recordings.get(_text(line, "recording_id"))
            if recording is None:
                raise DataError(f"{line[1]}: the recording {line[0]['recording_id']!r} is not among the recordings")
            untold.discard(_text(recording, "id"))
            yield _utterance(line, recording, 0.0, source)
        if untold:
            raise DataError(f"{files['supervisions']}: no transcript of the recording {min(untold)!r}")
    elif "cuts" in files:
        for line in _lines(files["cuts"]):
            yield from _cut(line, source)
    else:
        raise DataError(f"{next(iter(files.values()))}: recordings need supervisions, and supervisions recordings")


def _cut(line: Line, source: Path) -> Iterator[Utterance]:
    cut, where = line
    if "recording" not in cut:
        raise DataError(f"{where}: a cut of type {cut.get('type')!r} without a recording; only plain cuts are read")
    supervisions = cut.get("supervisions") or []
    if not supervisions:
        raise DataError(f"{where}: the cut {cut.get('id')!r} has no transcript")
    for supervision in supervisions:
        yield _utterance((supervision, where), (cut["recording"], where), _number(line, "start"), source)


def _utterance(line: Line, recording: Line, offset: float, source: Path) -> Utterance:
    begin, duration = offset + _number(line, "start"), _number(line, "duration")
    length = _number(recording, "duration")
    channel = line[0].get("channel", 0)
    channel = channel[0] if isinstance(channel, list) and channel else channel
    if not isinstance(channel, int):
        raise DataError(f"{line[1]}: channel {channel!r} is no number")
    path, given = _audio(recording, channel, source)
    name = _text(line, "id")
    whole = begin < 0.001 and abs(duration - length) < 0.001
    times = (None, None) if whole else (round(begin, 4), round(begin + duration, 4))
    words = tuple(_text(line, "text").split())
    if not words:
        raise DataError(f"{line[1]}: utterance {name!r} has no words")
    speaker = "_".join(str(line[0].get("speaker") or name).split())
    return Utterance("_".join(name.split()), path, speaker, words, given, *times)


def _audio(recording: Line, channel: int, source: Path) -> tuple[Path, int]:
    """Find the file of a channel, and the channel's index inside it."""
    value, where = recording
    for entry in value.get("sources", ()):
        if not isinstance(entry, dict) or channel not in entry.get("channels", (0,)):
            continue
        given = str(entry.get("source", ""))
        if entry.get("type") == "command":
            found = wav_scp.parse(f"{given.rstrip(' |')} |", where)
        elif entry.get("type") == "file":
            found = wav_scp.Source(Path(given), sorted(entry.get("channels", (0,))).index(channel))
        else:
            raise DataError(f"{where}: a source of type {entry.get('type')!r}; only files and usual commands are read")
        path = find_upwards(found.path, source)
        if path is None:
            raise DataError(f"{where}: the audio of {value.get('id')!r} is not there: {found.path}")
        return path, found.channel
    raise DataError(f"{where}: the recording {value.get('id')!r} has no source with channel {channel}")


def _lines(path: Path) -> Iterator[Line]:
    for number, line in read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: an object is wanted, not {line[:40]!r}")
        yield value, f"{path}:{number}"


def _text(line: Line, key: str) -> str:
    value = line[0].get(key)
    if not isinstance(value, str):
        raise DataError(f"{line[1]}: {key} must be a text, not {value!r}")
    return value


def _number(line: Line, key: str) -> float:
    value = line[0].get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise DataError(f"{line[1]}: {key} must be a number of seconds, not {value!r}")
    return float(value)


CORPUS = Corpus(
    name="lhotse",
    summary="a folder of lhotse manifests",
    licence="its own",
    import_splits=import_splits,
)

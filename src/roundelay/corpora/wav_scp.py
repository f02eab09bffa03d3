"""Entries of a Kaldi ``wav.scp``: a path, or a usual command whose file is read directly; commands are never run."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from roundelay.errors import DataError


class Source(NamedTuple):
    """File and channel of a recording."""

    path: Path
    channel: int


def parse(entry: str, where: str) -> Source:
    """Return the path (as written, perhaps relative) and the channel of an entry; ``where`` names the line in errors.

    An entry is a path or one of these commands; the program's name may have a folder before it::

        flac -c -d -s FILE |
        sph2pipe -f wav -p -c 2 FILE |
        sox FILE -t wav - remix 2 |
        cat FILE |
    """
    if not entry:
        raise DataError(f"{where}: no audio is named after the id")
    if not entry.endswith("|"):
        if entry.startswith("|"):
            raise _refusal(entry, where)
        return Source(Path(entry), 0)
    try:
        words = shlex.split(entry[:-1])
    except ValueError as error:
        raise DataError(f"{where}: cannot take {entry!r} apart: {error}") from error
    reader = _READERS.get(PurePosixPath(words[0]).name) if words else None
    if reader is None or any(mark in word for word in words for mark in "|;<>&`$"):
        raise _refusal(entry, where)
    source = reader(words[1:])
    if source is None:
        raise _refusal(entry, where)
    return source


def _refusal(entry: str, where: str) -> DataError:
    known = "'flac -c -d FILE |', 'sph2pipe -f wav -c N FILE |', 'sox FILE -t wav - |', 'cat FILE |'"
    return DataError(f"{where}: {entry!r} is a command and commands are not run; use a path or one of {known}")


def _flac(words: list[str]) -> Source | None:
    long = {"--stdout": "c", "--decode": "d", "--silent": "s"}
    flags = "".join(long.get(word, word[1:]) for word in words if word.startswith("-"))
    files = [word for word in words if not word.startswith("-")]
    decodes = set(flags) <= set("cds") and {"c", "d"} <= set(flags)
    return Source(Path(files[0]), 0) if decodes and len(files) == 1 else None


def _sph2pipe(words: list[str]) -> Source | None:
    channel, files, rest = 0, [], iter(words)
    for word in rest:
        if word in ("-c", "-f"):
            value = next(rest, "")
            if word == "-c":
                if value not in ("1", "2"):
                    return None
                channel = int(value) - 1
            elif value not in ("wav", "rif"):
                return None
        elif word == "-p":
            continue
        elif word.startswith("-"):
            return None
        else:
            files.append(word)
    return Source(Path(files[0]), channel) if len(files) == 1 else None


def _sox(words: list[str]) -> Source | None:
    if words[:1] and words[0].startswith("-"):
        words = _without_input_type(words)
    if not words or words[0].startswith("-") or "-" not in words[1:]:
        return None
    file, end = words[0], words.index("-", 1)
    between, effects = words[1:end], words[end + 1 :]
    options = iter(between)
    for option in options:  # rate and sample format can be ignored: audio is resampled when it is read
        if option not in ("-t", "-r", "-b", "-c", "-e", "-L") or (option != "-L" and next(options, None) is None):
            return None
    if "-t" in between and between[between.index("-t") + 1] not in ("wav", "wavpcm"):
        return None
    if "-c" in between and not effects:
        return None  # mixes the channels
    if not effects:
        return Source(Path(file), 0)
    if len(effects) == 2 and effects[0] == "remix" and effects[1].isdigit() and int(effects[1]) > 0:
        return Source(Path(file), int(effects[1]) - 1)
    return None


def _without_input_type(words: list[str]) -> list[str]:
    """Drop ``-t TYPE`` before the input: the type is found from a file's first bytes."""
    return words[2:] if words[0] == "-t" and len(words) > 2 and words[1] in ("wav", "sph", "flac", "mp3") else words


def _cat(words: list[str]) -> Source | None:
    return Source(Path(words[0]), 0) if len(words) == 1 and not words[0].startswith("-") else None


_READERS = {"flac": _flac, "sph2pipe": _sph2pipe, "sox": _sox, "cat": _cat}

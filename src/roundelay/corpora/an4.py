"""CMU AN4: spelled words, numbers, dates and short commands, 84 speakers, about 0.9 hours at 16 kHz.

Recorded at Carnegie Mellon University about 1991 ("the Census database"), kept at github.com/cmusphinx/an4 under a
licence of the BSD kind.  The original has ``etc/an4_train.fileids`` with lines like ``an4_clstk/fash/an251-fash-b``,
transcripts ``<s> YES </s> (an251-fash-b)`` in ``etc/an4_train.transcription``, the same for test, audio in ``wav/``
(SPHERE or wav), a dictionary and a unigram language model.

The official test part (10 speakers) is ``test``; ``dev`` is a tenth of the speakers of the official training part.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from roundelay.corpora import kaldi_dir
from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus, Download
from roundelay.corpora.splits import divide_by_speaker, write_splits
from roundelay.errors import DataError
from roundelay.files import make_inside, write_text
from roundelay.formats.text_tables import read_lines

_TRANSCRIPT = re.compile(r"^(.*)\(([^()\s]+)\)$")
_SUFFIXES = (".sph", ".wav", ".flac")


def import_splits(source: Path, out: Path) -> None:
    """Import the original folder, or a folder of data directories."""
    root = next((path.parent.parent for path in sorted(source.rglob("etc/an4_train.fileids"))), None)
    if root is None:
        if (source / "train" / "wav.scp").is_file():
            return kaldi_dir.import_splits(source, out)
        raise DataError(f"{source}: not AN4: there is no etc/an4_train.fileids in it")
    divided = divide_by_speaker(_part(root, "train"), {"train": 0.9, "dev": 0.1})
    if (root / "etc" / "an4_test.fileids").is_file():
        divided["test"] = _part(root, "test")
    write_splits(out, divided)
    _write_lexicon(root / "etc" / "an4.dic", out)
    if (root / "etc" / "an4.ug.lm").is_file():
        write_text(make_inside(out, "lm") / "an4.unigram.arpa", (root / "etc" / "an4.ug.lm").read_text("latin-1"))
    return None


def _part(root: Path, part: str) -> list[Utterance]:
    transcripts = root / "etc" / f"an4_{part}.transcription"
    words = {}
    for number, line in read_lines(transcripts):
        match = _TRANSCRIPT.match(line)
        if match is None:
            raise DataError(f"{transcripts}:{number}: '<s> WORDS </s> (name)' is wanted, not {line[:60]!r}")
        words[match[2]] = tuple(word for word in match[1].split() if word not in ("<s>", "</s>"))
    return [_utterance(root, file, words, transcripts) for _, file in read_lines(root / "etc" / f"an4_{part}.fileids")]


def _utterance(root: Path, file: str, words: dict[str, tuple[str, ...]], transcripts: Path) -> Utterance:
    *_, speaker, name = ("", *file.split("/"))
    audio = next((p for s in _SUFFIXES if os.path.isfile(p := root / "wav" / f"{file}{s}")), None)
    if audio is None:
        raw = os.path.isfile(root / "wav" / f"{file}.raw")
        hint = "; the byte order of raw samples is not known, use an4_sphere" if raw else ""
        raise DataError(f"{root / 'wav' / file}: the audio is not there ({', '.join(_SUFFIXES)}){hint}")
    if name not in words:
        raise DataError(f"{transcripts}: no transcript of {name!r}")
    first, _, rest = name.partition(f"-{speaker}")
    return Utterance(f"{speaker}-{first}{rest}", audio, speaker, words[name])


def _write_lexicon(dictionary: Path, out: Path) -> None:
    if dictionary.is_file():
        entries = [line.split() for _, line in read_lines(dictionary)]
        lines = {f"{re.sub(r'[(][0-9]+[)]$', '', word)} {' '.join(phones)}\n" for word, *phones in entries if phones}
        write_text(out / "lexicon.txt", "".join(sorted(lines)))


_COMMIT = "b567d132f43304e70a2b2eca6077f22255311812"
CORPUS = Corpus(
    name="an4",
    summary="spelled words, numbers, dates and short commands; 84 speakers, 0.9 h",
    licence="BSD-like (Carnegie Mellon University)",
    import_splits=import_splits,
    # no checksum: the archive of a commit has fixed content, but the host may compress it differently
    parts={"all": Download(f"https://github.com/cmusphinx/an4/archive/{_COMMIT}.tar.gz")},
    default_parts=("all",),
)

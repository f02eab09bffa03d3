"""Kaldi data directories: ``wav.scp text utt2spk``, with or without ``segments``.

Give the folder with train, dev and test (``data/``), or one data directory, which is divided by speakers.  Usual
commands in ``wav.scp`` are read directly (see ``wav_scp``); for others an error names the line.  ``feats.scp`` is
copied with full paths of its archives.  ``read_features`` and ``read_alignments`` read what Kaldi has computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roundelay.corpora.data_directory import Utterance, find_splits, read_split
from roundelay.corpora.importer import Corpus
from roundelay.corpora.splits import divide_by_speaker, split_name, write_splits
from roundelay.errors import DataError
from roundelay.files import inside, make_inside, write_text
from roundelay.formats.alignment_files import read_ali
from roundelay.formats.kaldi_archives import Floats, Integers, read_matrix_at, read_scp
from roundelay.formats.text_tables import read_lines, write_table


def import_splits(source: Path, out: Path) -> None:
    """Import the splits of a folder, with its lexicon, language models and features."""
    found = find_splits(source)
    divided = divide_by_speaker(read_split(source)) if list(found) == ["all"] else _named(found)
    write_splits(out, divided)
    _copy_feature_table(found, divided, out)
    copy_language(source, out)


def _named(found: dict[str, Path]) -> dict[str, list[Utterance]]:
    divided: dict[str, list[Utterance]] = {}
    for name, folder in found.items():
        divided.setdefault(split_name(name), []).extend(read_split(folder))
    return divided


def copy_language(source: Path, out: Path) -> None:
    """Copy the lexicon and the language models, if there are any."""
    if (source / "lexicon.txt").is_file():
        lines = [f"{line}\n" for _, line in read_lines(source / "lexicon.txt")]
        write_text(out / "lexicon.txt", "".join(lines))
    for model in sorted(source.glob("lm/*.arpa")):
        make_inside(out, "lm")
        try:
            write_text(inside(out, "lm", model.name, what="language model"), model.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{model}: not UTF-8 (byte {error.start})") from error


def _copy_feature_table(found: dict[str, Path], divided: dict[str, list[Utterance]], out: Path) -> None:
    places: dict[str, tuple[Path, int]] = {}
    for folder in found.values():
        if (folder / "feats.scp").is_file():
            places |= read_scp(folder / "feats.scp")
    for name, utterances in divided.items() if places else ():
        missing = [utterance.id for utterance in utterances if utterance.id not in places]
        if missing:
            raise DataError(f"{out / name}: utterance {missing[0]!r} is not in feats.scp, as {len(missing)} of them")
        rows = ((u.id, f"{places[u.id][0]}:{places[u.id][1]}") for u in utterances)
        write_table(inside(out, name, what="split") / "feats.scp", rows)


def read_features(folder: Path) -> Iterator[tuple[str, Floats]]:
    """Yield each utterance of a data directory and its features (frames, features), from ``feats.scp``."""
    for name, (archive, position) in read_scp(Path(folder) / "feats.scp").items():
        yield name, read_matrix_at(archive, position)


def read_alignments(folder: Path) -> Iterator[tuple[str, Integers]]:
    """Yield each utterance and its integers from all ``ali.*`` of an experiment's folder, by number."""
    files = [file for file in Path(folder).glob("ali.*") if file.name.removesuffix(".gz")[4:].isdigit()]
    if not files:
        raise DataError(f"{folder}: no ali.1.gz, ali.2.gz ... (or ali.1 ...) in it")
    yield from read_ali(sorted(files, key=lambda file: int(file.name.removesuffix(".gz")[4:])))


CORPUS = Corpus(
    name="kaldi",
    summary="a folder of Kaldi data directories, or one of them",
    licence="its own",
    import_splits=import_splits,
)

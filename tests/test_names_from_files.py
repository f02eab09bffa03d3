"""Whatever a corpus, an archive or prepared data call their parts, nothing is written outside of the named folder."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodable_run
import tone_corpus
from corpus_files import FUZZ
from hostile_corpora import LINKS, NAMES, SOURCES, untouched
from roundelay import corpora
from roundelay.cli.corpus import part_folder
from roundelay.corpora.archive import unpack
from roundelay.corpora.importer import MARKER, Download, import_corpus
from roundelay.errors import RoundelayError
from roundelay.speech.decoding.split_decoding import decode_run
from roundelay.speech.preparation.alignment_export import export_alignments
from roundelay.speech.preparation.pipeline import prepare
from roundelay.speech.preparation.prepared_data import DESCRIPTION, open_prepared


def test_every_importer_is_tried() -> None:
    assert set(SOURCES) == set(corpora.MODULES) - {"synthetic"}  # which reads no files


@pytest.mark.parametrize("corpus", sorted(SOURCES))
@FUZZ
@given(name=NAMES, link=LINKS)
def test_an_import_stays_in_its_folder(corpus: str, name: str, link: str) -> None:
    with untouched() as world:
        SOURCES[corpus](world, world.name(name))
        note = {"corpus": corpus, "source": str(world.source)}
        (world.out / ".importing.json").write_text(json.dumps(note))  # as a stranger may give it: an import goes on
        world.plant(link)
        world.ready()
        import_corpus(corpora.load(corpus), world.source, world.out)
        assert (world.out / MARKER).is_file()


@pytest.mark.parametrize("packer", ["tar", "zip"])
@FUZZ
@given(names=st.lists(NAMES, min_size=1, max_size=3), link=LINKS, kind=st.sampled_from([b"0", b"5", b"1", b"2"]))
def test_an_archive_stays_in_its_folder(packer: str, names: list[str], link: str, kind: bytes) -> None:
    with untouched() as world:
        archive = world.root / "a.bin"
        try:
            if packer == "tar":
                with tarfile.open(archive, "w:gz") as packed:
                    for name in names:
                        info = tarfile.TarInfo(world.name(name))
                        info.type, info.linkname, info.size = kind, "../victim", 4 if kind == b"0" else 0
                        packed.addfile(info, io.BytesIO(b"evil"))
                    packed.addfile(tarfile.TarInfo(f"{world.name(names[0])}/text"), io.BytesIO())
            else:
                with zipfile.ZipFile(archive, "w") as packed_zip:
                    for name in dict.fromkeys(names):
                        packed_zip.writestr(zipfile.ZipInfo(world.name(name)), b"evil")
        except (ValueError, OSError, IndexError):  # no archive can have this name
            archive.write_bytes(b"")
        world.plant(link)
        world.ready()
        unpack(archive, part_folder(world.out, "part"))


@FUZZ
@given(name=NAMES, part=NAMES)
def test_a_download_and_its_part_stay_in_the_folder(name: str, part: str) -> None:
    from roundelay.corpora.download import download_path

    with untouched() as world:
        world.ready()
        path = download_path(Download(f"https://example.org/{world.name(name)}"), world.out / "archives")
        assert path.resolve().is_relative_to(world.out / "archives")
        assert path.name not in ("", ".", "..")
        assert part_folder(world.out, world.name(part)).resolve().is_relative_to(world.out / "original")


@pytest.mark.parametrize("kind", ["ctm", "textgrid"])
@FUZZ
@given(name=NAMES, split=NAMES | st.just("dev"), link=LINKS)
def test_an_export_of_alignments_stays_in_its_folder(kind: str, name: str, split: str, link: str) -> None:
    with untouched() as world:
        world.out.rmdir()
        shutil.copytree(decodable_run.place() / "data", world.out)
        rename(world.out, "dev", world.name(name), world.name(split))
        world.plant(link)
        world.ready()
        export_alignments(open_prepared(world.out), kind)


def rename(data: Path, split: str, name: str, new_split: str) -> None:
    """Change the first id of a split, and what prepared data call the split, as a stranger may."""
    description = json.loads((data / DESCRIPTION).read_text())
    for key in ("splits", "train_splits"):
        description[key] = [new_split if each == split else each for each in description[key]]
    (data / DESCRIPTION).write_text(json.dumps(description))
    tone_corpus.forget_digests(data)
    for kind in ("senones", "phones", "words"):
        path = data / "alignments" / split / kind / "index.json"
        index = json.loads(path.read_text())
        index["ids"][0] = name
        path.write_text(json.dumps(index))
    with contextlib.suppress(OSError, ValueError):  # reading is not confined, so the split may be anywhere
        target = data / "alignments" / new_split
        if target.resolve().is_relative_to(data / "alignments") and new_split != split:
            (data / "alignments" / split).rename(target)


@pytest.mark.parametrize("link", ["features", "alignments", "utterances", "graphs", "hmm", "stages", ".lock"])
def test_a_preparation_follows_no_link(link: str) -> None:
    with untouched() as world:
        shutil.copytree(decodable_run.place() / "corpus", world.source, dirs_exist_ok=True)
        (world.out / "stages").mkdir()
        (world.root / "victim" / "dev").mkdir()
        if link == "stages":
            (world.out / "stages").rmdir()
        (world.out / link).symlink_to(world.root / "victim" / ("new" if link == ".lock" else ""))
        world.ready()
        with pytest.raises(RoundelayError, match="link"):
            prepare(world.source, world.out, decodable_run.SETTINGS)


@pytest.mark.parametrize("link", ["decode", "decode/log.jsonl", "decode/data-test-flat"])
def test_decoding_follows_no_link_of_a_run(link: str) -> None:
    with untouched() as world:
        world.out.rmdir()
        shutil.copytree(decodable_run.place() / "run", world.out, ignore=shutil.ignore_patterns("decode"))
        (world.out / link).parent.mkdir(exist_ok=True)
        (world.out / link).symlink_to(world.root / "victim" / ("text" if link.endswith("jsonl") else ""))
        world.ready()
        with pytest.raises(RoundelayError, match="link"):
            decode_run(world.out, decodable_run.place() / "data", language="flat", settings=decodable_run.FIXED)

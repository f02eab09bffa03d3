"""Packed files are read whole, and bombs are refused before they fill memory or disk."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from roundelay.corpora.archive import unpack
from roundelay.errors import DataError
from roundelay.formats import compressed
from roundelay.formats.compressed import decompressed

TEXT = b"".join(b"%d some words\n" % i for i in range(20_000))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_file_is_unpacked_in_pieces_and_after_a_seek(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]
    (tmp_path / "a").write_bytes(pack(TEXT) + (b"" if packer == "plain" else pack(b"more")))
    with (tmp_path / "a").open("rb") as raw:
        file = decompressed(raw, tmp_path / "a")
        whole = TEXT if packer == "plain" else TEXT + b"more"
        assert b"".join(iter(lambda: file.read(1000), b"")) == whole
        file.seek(5)
        assert file.readline() == TEXT[5:].partition(b"\n")[0] + b"\n"
        file.seek(len(TEXT) - 3)
        assert file.read() == whole[-3:] if packer == "plain" else TEXT[-3:] + b"more"


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz"])
def test_a_truncated_file_is_noticed(tmp_path: Path, packer: str) -> None:
    (tmp_path / "a").write_bytes(PACKERS[packer](TEXT)[:-20])
    with (tmp_path / "a").open("rb") as raw, pytest.raises(EOFError, match="truncated"):
        decompressed(raw, tmp_path / "a").read()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow 1 MB, so that a test needs little time and memory."""
    monkeypatch.setattr(compressed, "ALLOWED_BYTES", 1 << 20)
    monkeypatch.setattr(compressed, "LONGEST_READ_BYTES", 1 << 20)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz"])
def test_a_bomb_is_refused(tmp_path: Path, packer: str) -> None:
    (tmp_path / "a").write_bytes(PACKERS[packer](bytes(8 << 20)))
    with (tmp_path / "a").open("rb") as raw, pytest.raises(DataError, match=r"a: unpacks to more than 1 MB"):
        decompressed(raw, tmp_path / "a").read()


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", ["tar", "zip", "header", "members"])
def test_an_archive_that_is_a_bomb_leaves_nothing(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "a.bin"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("x", bytes(8 << 20))
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for number in range(11_000 if kind == "members" else 1):
                info = tarfile.TarInfo(f"x{number}")
                info.size = 8 << 20 if kind == "tar" else 0
                info.pax_headers = {"comment": "a" * (8 << 20)} if kind == "header" else {}
                tar.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(DataError, match="unpacks to more than|one of its parts would have|refused: more than"):
        unpack(archive, tmp_path / "out" / "part")
    assert not (tmp_path / "out" / "part").exists()

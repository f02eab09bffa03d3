from __future__ import annotations

import io
import resource
import signal
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ
from roundelay.corpora.archive import unpack
from roundelay.errors import DataError


def tar(path: Path, *members: tarfile.TarInfo | tuple[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as packed:  # type: ignore[call-overload]  # the mode is one of the literals
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                packed.addfile(info, io.BytesIO(member[1]))
            else:
                packed.addfile(member)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def inside(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_unpacked_once(tmp_path: Path, mode: str) -> None:
    archive = tar(
        tmp_path / "a.tar", special("x", tarfile.DIRTYPE), ("x/y/a.wav", b"audio"), ("./b.txt", b""), mode=mode
    )
    unpack(archive, tmp_path / "out" / "part")
    assert (tmp_path / "out" / "part" / "x" / "y" / "a.wav").read_bytes() == b"audio"
    (tmp_path / "out" / "part" / "b.txt").write_text("mine")
    unpack(archive, tmp_path / "out" / "part")
    assert (tmp_path / "out" / "part" / "b.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out"]


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x/a.wav", b"audio")
        packed.writestr("y/", b"")
    unpack(tmp_path / "a.zip", tmp_path / "out" / "part")
    assert inside(tmp_path / "out" / "part") == ["x", "x/a.wav", "y"]


@pytest.mark.parametrize("name", ["../evil", "x/../../evil", "/tmp/evil", "..\\evil", "C:\\evil", "c:/evil"])
def test_a_member_that_climbs_out_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("good", b"")
        packed.writestr(name, b"evil")
    for archive in (tar(tmp_path / "a.tar", ("good", b""), (name, b"evil")), tmp_path / "a.zip"):
        with pytest.raises(DataError, match=r"refused: .*evil' cannot be .*: it is outside of the folder"):
            unpack(archive, tmp_path / "out" / "part")
    assert inside(tmp_path) == ["a.tar", "a.zip", "out"]
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a device"),
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes, what: str) -> None:
    archive = tar(tmp_path / "a.tar", special("x", kind, "/etc"), ("x/passwd", b"evil"))
    with pytest.raises(DataError, match=rf"a\.tar: refused: 'x' is {what}"):
        unpack(archive, tmp_path / "out" / "part")
    assert not (tmp_path / "out" / "part").exists()


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("x")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(info, "/etc")
    with pytest.raises(DataError, match="'x' is neither a file nor a folder"):
        unpack(tmp_path / "a.zip", tmp_path / "out" / "part")


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", ("x", b"1"), ("./x", b"2"))
    with pytest.raises(DataError, match="is in it twice"):
        unpack(archive, tmp_path / "out" / "part")


def test_a_truncated_archive_leaves_nothing(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("x", bytes(range(256)) * 999), ("y", b"1"))
    archive.write_bytes(archive.read_bytes()[:-700])
    with pytest.raises(DataError, match=r"a\.tar\.gz: damaged or no archive"):
        unpack(archive, tmp_path / "out" / "part")
    assert not (tmp_path / "out" / "part").exists()
    with pytest.raises(DataError, match="missing"):
        unpack(tmp_path / "missing", tmp_path / "out" / "part")


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("x", bytes(500_000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(DataError, match=r"a\.tar\.gz: cannot be unpacked into .*: File too large"):
            unpack(archive, tmp_path / "out" / "part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not (tmp_path / "out" / "part").exists()
    unpack(archive, tmp_path / "out" / "part")
    assert (tmp_path / "out" / "part" / "x").stat().st_size == 500_000


@FUZZ
@given(st.binary(max_size=600), st.sampled_from([b"", b"PK\x03\x04", b"\x1f\x8b\x08\0", b"BZh9", b"\xfd7zXZ\0"]))
def test_any_bytes_are_unpacked_or_refused(tmp_path_factory: pytest.TempPathFactory, body: bytes, start: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a").write_bytes(start + body)
    try:
        unpack(folder / "a", folder / "out" / "part")
    except DataError:
        assert not (folder / "out" / "part").exists()

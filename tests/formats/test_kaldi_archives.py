from __future__ import annotations

import gzip
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ
from roundelay.errors import DataError
from roundelay.formats import kaldi_archives

MATRIX = np.array([[1.0, -2.5, 3.25], [4.0, 5.5, -6.0]], np.float32)


def integer(value: int) -> bytes:
    return b"\x04" + struct.pack("<i", value)


def test_plain_matrices_single_and_double(tmp_path: Path) -> None:
    double = b"\0BDM " + integer(2) + integer(3) + MATRIX.astype("<f8").tobytes()
    single = b"\0BFM " + integer(2) + integer(3) + MATRIX.astype("<f4").tobytes()
    (tmp_path / "a.ark").write_bytes(b"a-1 " + single + b"b-1 " + double)
    found = dict(kaldi_archives.read_matrices(tmp_path / "a.ark"))
    assert list(found) == ["a-1", "b-1"]
    assert all(np.array_equal(values, MATRIX) and values.dtype == np.float32 for values in found.values())


def test_text_matrices(tmp_path: Path) -> None:
    (tmp_path / "a.ark").write_text("a-1  [\n  1 -2.5 3.25\n  4 5.5 -6 ]\nb-1  [ ]\n")
    found = dict(kaldi_archives.read_matrices(tmp_path / "a.ark"))
    assert np.array_equal(found["a-1"], MATRIX)
    assert found["b-1"].shape == (0, 0)


@pytest.mark.parametrize(("token", "width", "full"), [(b"CM2 ", 2, 65535), (b"CM3 ", 1, 255)])
def test_matrices_of_two_bytes_and_one(tmp_path: Path, token: bytes, width: int, full: int) -> None:
    codes = np.array([[0, full], [full // 2, 1]], f"<u{width}")
    head = struct.pack("<ffii", -8.0, 16.0, 2, 2)
    (tmp_path / "a.ark").write_bytes(b"a-1 \0B" + token + head + codes.tobytes())
    ((_, values),) = kaldi_archives.read_matrices(tmp_path / "a.ark")
    assert values == pytest.approx(-8 + 16 * codes.astype(float) / full, abs=1e-5)


def test_matrices_with_four_levels_a_column(tmp_path: Path) -> None:
    """By hand: minimum -10, range 20; levels of the only column at 0, 25, 75 and 100 percent: -10, -5, 5, 10."""
    levels = np.array([0, 16384, 49151, 65535], "<u2")
    codes = np.array([0, 32, 64, 128, 192, 255], np.uint8)
    head = struct.pack("<ffii", -10.0, 20.0, 6, 1)
    (tmp_path / "a.ark").write_bytes(b"a-1 \0BCM " + head + levels.tobytes() + codes.tobytes())
    ((_, values),) = kaldi_archives.read_matrices(tmp_path / "a.ark")
    assert values[:, 0] == pytest.approx([-10, -7.5, -5, 0, 5, 10], abs=1e-3)


def test_an_scp_points_into_archives(tmp_path: Path) -> None:
    body = b"\0BFM " + integer(2) + integer(3) + MATRIX.tobytes()
    (tmp_path / "data").mkdir()
    (tmp_path / "raw.ark").write_bytes(b"a-1 " + body + b"b-1 " + body)
    (tmp_path / "data" / "feats.scp").write_text(f"a-1 raw.ark:4\nb-1 {tmp_path}/raw.ark:{8 + len(body)}\n")
    places = kaldi_archives.read_scp(tmp_path / "data" / "feats.scp")
    assert all(np.array_equal(kaldi_archives.read_matrix_at(*place), MATRIX) for place in places.values())
    with pytest.raises(DataError, match=r"raw\.ark:5: "):
        kaldi_archives.read_matrix_at(tmp_path / "raw.ark", 5)


@pytest.mark.parametrize(
    "entry", ["gunzip -c x.ark.gz |", "raw.ark:7[0:5]", "raw.ark", "missing.ark:7", "raw.ark:x", "raw.ark:²"]
)
def test_an_scp_that_is_not_plain_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "raw.ark").write_bytes(b"a-1 ")
    (tmp_path / "feats.scp").write_text(f"a-1 {entry}\n")
    with pytest.raises(DataError, match=r"feats\.scp:1: "):
        kaldi_archives.read_scp(tmp_path / "feats.scp")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"a-1 \0BFM " + integer(2) + integer(3) + bytes(7), "'a-1': truncated"),
        (b"a-1 \0BFM " + integer(-2) + integer(3), "'a-1': damaged: it would hold -2 x 3 values"),
        (b"a-1 \0BFM " + integer(2**31 - 1) + integer(2**31 - 1), "would hold 2147483647 x 2147483647"),
        (b"a-1 \0BXX ", "not a matrix"),
        (b"a-1 \0C", "the mark of a binary value is broken"),
        (b"a-1  [ 1 2\n 3 ]\n", "not of one length"),
        (b"a-1  [ 1 2\n", "truncated"),
        (b"a-1  hello\n", "not a matrix"),
        (b"a-1  [ ]\na-1  [ ]\n", "'a-1' comes twice"),
        (b"a-1", "truncated after"),
        (b"x" * 5000, "not a Kaldi archive"),
        (b"\xff\xfe \0BFM ", "not UTF-8"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.ark").write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(kaldi_archives.read_matrices(tmp_path / "a.ark"))
    assert what in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.ark"))


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(b"a-%d 1 2 3\n" % i for i in range(1000)))
    (tmp_path / "ali.1.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"ali\.1\.gz: cannot be read"):
        list(kaldi_archives.read_integers(tmp_path / "ali.1.gz"))


PIECES = st.sampled_from(
    [
        b"a ",
        b"b ",
        b"\0B",
        b"FM ",
        b"DM ",
        b"CM ",
        b"CM2 ",
        b"\x04",
        bytes(4),
        integer(2),
        b"[ 1 2\n",
        b"]\n",
        b"\x1f\x8b",
    ]
)


@FUZZ
@given(st.one_of(st.binary(max_size=80), st.lists(PIECES, max_size=20).map(b"".join)))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.ark"
        path.write_bytes(content)
        for read in (kaldi_archives.read_matrices, kaldi_archives.read_integers):
            try:
                list(read(path))
            except DataError:
                continue

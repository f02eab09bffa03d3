"""The one writer of files: complete or unchanged, with errors that its callers can use."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.files import (
    append_text,
    data_errors,
    finite_json,
    make_inside,
    open_plain,
    read_json,
    replacing,
    write_bytes,
    write_json,
    write_text,
)


def test_json_has_no_infinity() -> None:
    given = {"a": [1.0, float("inf")], "b": (float("nan"), "x")}
    assert finite_json(given) == {"a": [1.0, None], "b": [None, "x"]}


def fail_with_full_disk(path: Path) -> None:
    """Write half of a file and fail as a full disk does, without the name of a file."""
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_and_no_other_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("one", "two"):
        write_text(path, text)
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(DataError, match=r"a\.txt: cannot be written: No space left on device; fix this and run"):
        fail_with_full_disk(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_leftover_of_a_killed_process_has_the_name_that_checkpoints_look_for(tmp_path: Path) -> None:
    with replacing(tmp_path / "model.json") as temporary:
        assert temporary.name == f".model.json.{os.getpid()}"
        temporary.write_text("{}")
        assert list(tmp_path.glob(".*.[0-9]*")) == [temporary]


def test_write_bytes_raises_a_plain_error_with_the_name_of_the_file(tmp_path: Path) -> None:
    """A checkpoint is tried again after an `OSError`; a `DataError` would end the run."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_bytes(tmp_path / "part", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.filename == str(tmp_path / "part")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/a\.json: cannot be written: No such file"):
        write_json(tmp_path / "nowhere" / "a.json", {})


def test_an_error_with_another_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="source"), data_errors(tmp_path / "target"):
        (tmp_path / "source").read_bytes()


def test_json_is_sorted_unless_the_order_says_something(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": 1, "a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n "a": "é",\n "b": 1\n}\n'
    write_json(path, {"b": 1, "a": 2}, sort_keys=False)
    assert list(read_json(path)) == ["b", "a"]
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not JSON"):
        read_json(path)


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_a_link_of_a_temporary_files_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".a.txt.{os.getpid()}").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "a.txt", "new")
    assert ((tmp_path / "a.txt").read_text(), (tmp_path / "mine").read_text()) == ("new", "mine")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_and_folders_have_the_users_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a", "x")
        append_text(tmp_path / "b", "x")
        make_inside(tmp_path, "c")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "abc"] == [mode, mode, 0o777 & ~umask]


def test_a_pipe_or_a_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless", "."):
        with pytest.raises(DataError, match="not a plain file"), open_plain(tmp_path / name):
            pass
    with pytest.raises(DataError, match="cannot be read: No such file"), open_plain(tmp_path / "missing"):
        pass

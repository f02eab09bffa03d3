"""Files are compared with their digests in a thread, once, and what is wrong is told in one line."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.speech.features import digest_checks


def test_a_whole_file_and_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(b"right")
    right = hashlib.sha256(b"right").hexdigest()
    assert digest_checks.submit(path, right, "index.json").result(60) == ""
    path.write_bytes(b"wrong")
    said = digest_checks.submit(path, right, "index.json").result(60)
    assert said == f"{path}: damaged: its sha256 is not that in index.json; {digest_checks.AGAIN}"
    with pytest.raises(DataError, match="damaged"):
        digest_checks.check(path, right, "index.json")


def test_a_reader_is_told_when_it_looks(tmp_path: Path) -> None:
    checks = digest_checks.FileChecks()
    (tmp_path / "a").write_bytes(b"a")
    checks.begin(tmp_path / "a", hashlib.sha256(b"a").hexdigest(), "index.json")
    checks.finish()
    checks.look()
    checks.begin(tmp_path / "a", "another", "index.json")
    checks.begin(tmp_path / "a", hashlib.sha256(b"a").hexdigest(), "index.json")
    with pytest.raises(DataError, match="a: damaged"):
        checks.finish()
    with pytest.raises(DataError, match="a: damaged"):
        checks.look()


def test_a_file_that_has_gone(tmp_path: Path) -> None:
    said = digest_checks.submit(tmp_path / "none", "0", "index.json").result(60)
    assert said.startswith(f"{tmp_path / 'none'}: cannot be read: No such file")


def test_a_forked_process_has_a_thread_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(b"x")
    digest_checks.submit(path, "0", "index.json").result(60)  # the thread runs
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if digest_checks.submit(path, "0", "index.json").result(60) else 2)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert status == 0

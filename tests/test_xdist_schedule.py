"""What is said of tests that run one by one is true of the tests there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from xdist_schedule import ONE_BY_ONE

LAUNCHERS = ("runtimes.processes import launcher", "runtimes.mpi import mpi_launcher")


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_there_is_such_a_test(name: str, root: Path) -> None:
    file, _, function = name.partition("::")
    assert f"\ndef {function or 'test_'}" in (root / file).read_text(encoding="utf-8")


def test_whoever_starts_learners_is_among_them(root: Path) -> None:
    for file in sorted((root / "tests").rglob("test_*.py")):
        if file != Path(__file__) and any(launcher in file.read_text(encoding="utf-8") for launcher in LAUNCHERS):
            path = file.relative_to(root).as_posix()
            assert any(name.startswith(path) for name in ONE_BY_ONE), path

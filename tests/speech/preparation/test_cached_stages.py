"""Stages run once for the same inputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.speech.preparation.cached_stages import Stage, Stages, create_folder, files_under, lock_folder


def stages(folder: Path, *, first: int = 1, second: int = 1) -> Stages:
    def write(name: str) -> Iterable[Path]:
        (folder / name).write_text(name)
        return [folder / name]

    return Stages(
        folder, [Stage("a", first, lambda: write("a.txt")), Stage("b", second, lambda: write("b.txt"), ("a",))]
    )


def test_stages_run_once_and_again_after_a_change(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "data")
    assert stages(folder).missing() == ["a", "b"]
    assert stages(folder).run() == ["a", "b"]
    assert stages(folder).run() == []
    assert stages(folder, second=2).run() == ["b"]
    assert stages(folder, first=2, second=2).run() == ["a", "b"]  # b uses a
    assert set(stages(folder).seconds()) == {"a", "b"}


def test_a_stage_whose_file_was_changed_or_that_failed_runs_again(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "data")
    stages(folder).run()
    (folder / "a.txt").write_text("longer than before")
    assert stages(folder).missing() == ["a"]

    def fail() -> Iterable[Path]:
        raise DataError("broken")

    failing = Stages(folder, [Stage("a", 1, fail)])
    with pytest.raises(DataError, match="broken"):
        failing.run()
    assert failing.missing() == ["a"]


def test_folders_of_others_and_folders_in_use_are_errors(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(DataError, match="not empty, and not prepared data"):
        create_folder(tmp_path / "other")
    with pytest.raises(DataError, match="--out must be a folder"):
        create_folder(tmp_path / "other" / "file")
    folder = create_folder(tmp_path / "data")
    with lock_folder(folder), pytest.raises(DataError, match="in use by another preparation"), lock_folder(folder):
        pass
    assert files_under(folder) == []  # the lock is hidden

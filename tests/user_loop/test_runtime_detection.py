"""Which ranks a user loop is among, by its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.user_loop.runtime_detection import Seats, find_source

SLURM = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}


def end(seats: Seats) -> None:
    runtime = seats.runtime(seats.learner)
    runtime.record.write("step", "learner 0", 1.0)
    seats.end(seats.learner, runtime)
    seats.merge()


def test_without_a_launcher_a_learner_is_alone(tmp_path: Path) -> None:
    seats = Seats(0, tmp_path / "run", resumed=False)
    end(seats)
    assert isinstance(Seats(0, None, resumed=False).runtime(0), LocalRuntime)
    assert (tmp_path / "run" / "record.jsonl").read_text().count("step") == 1


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    end(Seats(0, None, resumed=False))
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_not_overwritten_but_may_be_continued(tmp_path: Path) -> None:
    end(Seats(0, tmp_path, resumed=False))
    with pytest.raises(SettingsError, match="give record= a new folder"):
        Seats(0, tmp_path, resumed=False)
    end(Seats(0, tmp_path, resumed=True))


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({}, "alone"),
        ({"WORLD_SIZE": "1"}, "alone"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "PMIX_RANK": "0"} | SLURM, "torchrun"),
        (SLURM, "slurm"),
        (SLURM | {"PMIX_RANK": "1"}, "slurm"),
        (SLURM | {"PMI_RANK": "1", "PMIX_RANK": "1"}, "slurm"),
        (SLURM | {"OMPI_COMM_WORLD_RANK": "3"}, "mpi"),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "alone"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "mpi"),
    ],
)
def test_the_ranks_are_those_of_the_launcher(variables: dict[str, str], source: str) -> None:
    assert find_source(variables) == source


def test_one_of_several_processes_never_trains_alone() -> None:
    with pytest.raises(SettingsError, match="WORLD_SIZE is 2, but there is no RANK and no process group yet"):
        find_source({"WORLD_SIZE": "2"})

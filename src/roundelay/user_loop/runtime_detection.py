"""Choose the runtime of a user loop by the environment, and start and end its record."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from roundelay.errors import SettingsError
from roundelay.runs.record import Record, merge_records
from roundelay.runtime import Runtime
from roundelay.runtimes.mpi import mpi_runtime as mpi
from roundelay.runtimes.processes import environment, external_launch
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.processes.process_runtime import from_environment
from roundelay.runtimes.single_learner import LocalRuntime

_runs = itertools.count()  # runs of this process: a program may call `join` several times


def detect_runtime(folder: Path | None, *, resumed: bool) -> tuple[Runtime, Callable[[], None]]:
    """Be a rank of mpiexec, torchrun or Slurm, or a learner alone; return the runtime and the function that ends it.

    With ``folder``, each rank writes its record there; at the end the records are merged.  The folder must not have a
    record yet, unless the run is ``resumed``.
    """
    if mpi.under_mpi():
        _begin(folder, mpi.start(), resumed=resumed)
        ranks = mpi.runtime(folder)
        return ranks, ranks.finish
    world = environment.find()
    if world is None:
        _begin(folder, 0, resumed=resumed)
        alone = LocalRuntime(Record(folder / "record-0.jsonl" if folder is not None else None, clock="wall"))
        return alone, lambda: _end(alone, folder)
    _begin(folder, world.rank, resumed=resumed, again=world.restarted)
    runtime = from_environment(folder=folder, part=f"run {next(_runs)}")
    assert runtime is not None
    return runtime, lambda: external_launch.end(world, runtime, folder, Options().heartbeat_timeout)


def _begin(folder: Path | None, rank: int, *, resumed: bool, again: bool = False) -> None:
    """Make the folder of the record; ``again``: this rank was restarted after a loss, and starts a new record."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if resumed:
        return  # the checkpoint restores the record too
    mine, whole = folder / f"record-{rank}.jsonl", folder / "record.jsonl"
    if again:
        mine.unlink(missing_ok=True)
    elif mine.exists() or whole.exists():
        raise SettingsError(f"{folder}: already has a record; give record= a new folder")


def _end(alone: LocalRuntime, folder: Path | None) -> None:
    alone.record.close(alone.now())
    if folder is not None:
        merge_records(folder, keep=True)

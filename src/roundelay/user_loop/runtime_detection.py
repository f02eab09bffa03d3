"""The runtime that the environment says, for a loop of the user's own, and where its record goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from roundelay.errors import SettingsError
from roundelay.runs.record import Record, merge_records
from roundelay.runtime import Runtime
from roundelay.runtimes.mpi import mpi_runtime as mpi
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes import external_launch as given
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.processes.process_runtime import from_environment
from roundelay.runtimes.single_learner import LocalRuntime

_runs = itertools.count()  # of this process, which may join one after another


def detect_runtime(folder: Path | None, *, resumed: bool) -> tuple[Runtime, Callable[[], None]]:
    """Be a rank of what mpiexec, torchrun or Slurm has started, or else alone; return the runtime, and what ends it.

    With ``folder``, each rank writes its record there, and at the end they are made into one.  There must be no record
    in it, unless the run is ``resumed``.
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
    return runtime, lambda: given.end(world, runtime, folder, Options().heartbeat_timeout)


def _begin(folder: Path | None, rank: int, *, resumed: bool, again: bool = False) -> None:
    """See that a rank's record begins where its run does; ``again``, it is begun anew after a loss."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if resumed:
        return  # the record goes back with the run
    mine, whole = folder / f"record-{rank}.jsonl", folder / "record.jsonl"
    if again:
        mine.unlink(missing_ok=True)
    elif mine.exists() or whole.exists():
        raise SettingsError(f"{folder}: has a record already; give record= a new folder")


def _end(alone: LocalRuntime, folder: Path | None) -> None:
    alone.record.close(alone.now())
    if folder is not None:
        merge_records(folder, keep=True)

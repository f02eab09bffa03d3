"""A run in a world that torchrun or Slurm has made: who makes its folder, and who merges its records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from roundelay.errors import CommunicationError
from roundelay.runs.record import merge_records
from roundelay.runtimes.processes.environment import World
from roundelay.runtimes.processes.process_runtime import Options, ProcessRuntime, connect_world, from_environment
from roundelay.runtimes.processes.transport.key_value_store import StoreGone

__all__ = ["prepare", "rank_of"]

POLL_SECONDS = 0.01


def prepare(world: World, options: Options, first: Callable[[], object]) -> None:
    """Have the first rank call ``first``, to make the run's folder, say, before any other goes on."""
    store = connect_world(world, options.heartbeat_timeout)
    try:
        if world.rank == 0:
            first()
            store.set("prepared", True)
        else:
            store.wait("prepared")
    except StoreGone as error:
        raise CommunicationError(f"rank {world.rank}: the first rank has ended before the run began") from error


@contextlib.contextmanager
def rank_of(world: World, options: Options, folder: Path, part: str = "run") -> Iterator[ProcessRuntime]:
    """Be one rank of a run whose records go to ``folder``, where the first rank of each host merges them at the end."""
    folder.mkdir(parents=True, exist_ok=True)  # another host may see another disk
    runtime = from_environment(options, folder=folder, part=part)
    assert runtime is not None
    try:
        yield runtime
    except BaseException:
        end(world, runtime, folder, 0.0)  # the others' records as far as they have come
        raise
    end(world, runtime, folder, options.heartbeat_timeout)


def end(world: World, runtime: ProcessRuntime, folder: Path | None, heartbeat_timeout: float) -> None:
    """Close our part of the run, and merge the records, if that is for us to do and there are any."""
    runtime.stop()
    if folder is None:
        return
    try:
        if heartbeat_timeout:
            _await_all(world, runtime, heartbeat_timeout)
    finally:
        if world.local_rank == 0:
            merge_records(folder, keep=True)


def _await_all(world: World, runtime: ProcessRuntime, heartbeat_timeout: float) -> None:
    """Say that our record is whole, and wait, if we are to merge, until all are."""
    store, deadline = runtime.store, time.monotonic() + heartbeat_timeout
    with contextlib.suppress(StoreGone):  # its keeper has seen all of them, and ended
        store.set(f"recorded/{world.rank}", True)
        missing = set(range(world.size)) if world.local_rank == 0 else set()
        while missing := {rank for rank in missing if not store.has(f"recorded/{rank}")}:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

"""A run in a world that torchrun or Slurm has made: rank 0 makes its folder, one rank per host merges its records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from roundelay.errors import CommunicationError
from roundelay.runs.record import merge_records
from roundelay.runtimes.processes.environment import World
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.processes.process_runtime import ProcessRuntime, connect_world, from_environment
from roundelay.runtimes.processes.transport.key_value_store import StoreGone

POLL_SECONDS = 0.01


def prepare(world: World, options: Options, first: Callable[[], object]) -> None:
    """Let rank 0 call ``first``, for example to make the run's folder, before any other rank continues."""
    store = connect_world(world, options.heartbeat_timeout)
    try:
        if world.rank == 0:
            first()
            store.set("prepared", True)
        else:
            store.wait("prepared")
    except StoreGone as error:
        raise CommunicationError(f"rank {world.rank}: rank 0 ended before the run began") from error


@contextlib.contextmanager
def rank_of(world: World, options: Options, folder: Path, part: str = "run") -> Iterator[ProcessRuntime]:
    """Run one rank, with records in ``folder``; the first rank of each host merges them at the end."""
    folder.mkdir(parents=True, exist_ok=True)  # another host may have another disk
    runtime = from_environment(options, folder=folder, part=part)
    assert runtime is not None
    try:
        yield runtime
    except BaseException:
        end(world, runtime, folder, 0.0)  # merge the others' records as far as they are written
        raise
    end(world, runtime, folder, options.heartbeat_timeout)


def end(world: World, runtime: ProcessRuntime, folder: Path | None, heartbeat_timeout: float) -> None:
    """Close our part of the run; merge the records if there are any and we are the first rank of this host."""
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
    """Announce that our record is complete; if we merge, wait until all are."""
    store, deadline = runtime.store, time.monotonic() + heartbeat_timeout
    with contextlib.suppress(StoreGone):  # its host has seen all of them, and ended
        store.set(f"recorded/{world.rank}", True)
        missing = set(range(world.size)) if world.local_rank == 0 else set()
        while missing := {rank for rank in missing if not store.has(f"recorded/{rank}")}:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

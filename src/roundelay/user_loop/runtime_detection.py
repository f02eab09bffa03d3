"""Which ranks a user loop is among: those of its process group, of a launcher, of MPI, or none but itself."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed

from roundelay.errors import SettingsError
from roundelay.runs.record import Record, merge_records
from roundelay.runtime import Runtime
from roundelay.runtimes.mpi import mpi_runtime as mpi
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.options import Options, ProcessInfo
from roundelay.runtimes.processes.process_runtime import ProcessRuntime, connect_world
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, start_store
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.user_loop.meeting_place import LOOPBACK, Meeting, StorePlace, meet, meet_in_file, on_one_host

dist: Any = torch.distributed  # its type information is incomplete
RECORD_SECONDS = 30.0  # how long the first process of a host waits for the records of the others
POLL_SECONDS = 0.01
_joins = itertools.count()  # a program may call `join` several times, and all its processes do so in the same order

Source = Literal["group", "torchrun", "slurm", "mpi", "alone"]


@dataclass(frozen=True)
class LoopWorld:
    """The processes of a user loop, and the store in which they meet."""

    rank: int
    size: int
    store: KeyValueStore
    host: str
    """Equal for processes that can share memory."""
    address: str
    """The network address of this process."""
    elastic: bool = False
    """Whether the others continue if a process is lost, and it may be started again."""
    attempt: int = 0
    """How often this process was lost before, and started again: above 0 the others have begun without it."""
    job_attempt: int = 0
    """How often all processes were started before."""
    heartbeat_timeout: float = Options.heartbeat_timeout
    """Seconds without a heartbeat until a process counts as lost."""
    has_ended: Callable[[int], bool] | None = None
    """Whether the process of a rank is known to have ended, even before its first heartbeat."""


launched: LoopWorld | None = None
"""The world of a script that `roundelay launch` has started; its launcher sets it."""


class Seats:
    """The places of one `join` among the ranks: the servers come first, then one learner for each process."""

    def __init__(self, servers: int, folder: Path | None, *, resumed: bool) -> None:
        source: Source = "alone" if launched is not None else find_source(os.environ)
        self._folder, self._servers = folder, servers
        self._mpi = source == "mpi" and not servers
        self._world: LoopWorld | None = None
        self.rank, self.size, self.on = 0, 1, "processes"
        if self._mpi:
            self.rank, self.size, self.on = mpi.start(), mpi_size(), "mpi"
        elif source != "alone" or servers or launched is not None:
            world = launched or make_world(source)
            number = next(_joins)
            self._world, self._store = world, world.store.with_prefix(f"loop {number}")
            self.rank, self.size = world.rank, world.size
            if world.elastic:
                if folder is not None:
                    world.store.set(f"records/{number}", str(folder.absolute()))  # the launcher merges them
                if self._store.add("processes", 1) == 1:
                    self._store.add("ids", servers + world.size)  # later ones are of newcomers
                world.store.setdefault(f"loop/{number}", servers)  # the launcher tells each of them of a loss
        self._begin_record(resumed=resumed)

    @property
    def hosted(self) -> Sequence[int]:
        """The servers that live in this process; one that was lost does not get its servers back."""
        return range(0) if self.comes_back else range(self.rank, self._servers, self.size)

    @property
    def learner(self) -> int:
        """The rank of this process's learner, servers first."""
        return self._servers + self.rank

    @property
    def comes_back(self) -> bool:
        """Whether the others have begun without us, since we were lost."""
        return self._world is not None and self._world.attempt > 0

    def publish(self, position: dict[str, Any]) -> None:
        """Tell those who come back where in the script's loops the others are."""
        if self._world is not None and self._world.elastic:
            self._store.set("position", position)

    def published(self) -> dict[str, Any] | None:
        """Return where the others are, if they have told."""
        position: dict[str, Any] | None = self._store.get("position")
        return position

    def runtime(self, number: int) -> Runtime:
        """Make the runtime of rank ``number``; the thread that calls this is the rank's own."""
        if self._mpi:
            return mpi.runtime(self._folder)
        if self._world is None:
            path = self._folder / "record-0.jsonl" if self._folder is not None else None
            return LocalRuntime(Record(path, clock="wall"))
        world = self._world
        process = ProcessInfo(number, self._servers + self.size, world.host, world.address, elastic=world.elastic)
        return ProcessRuntime(
            self._store.clone(),
            process,
            Options(heartbeat_timeout=world.heartbeat_timeout),
            folder=self._folder,
            attempt=world.attempt,
            has_ended=self._gone(),
        )

    def _gone(self) -> Callable[[int], bool] | None:
        """Return what tells whether the process in which a rank lives has ended."""
        world, servers = self._world, self._servers
        has_ended = world.has_ended if world is not None else None
        if world is None or has_ended is None:
            return None
        return lambda number: has_ended(number - servers if number >= servers else number % world.size)

    def end(self, number: int, runtime: Runtime) -> None:
        """End a rank's runtime; the last of the learners of a host, in their order, merges the records."""
        if isinstance(runtime, mpi.MpiRuntime):
            runtime.finish()
        elif isinstance(runtime, ProcessRuntime) and runtime.elastic:
            runtime.leave()
        elif isinstance(runtime, ProcessRuntime):
            runtime.stop()
            with contextlib.suppress(StoreGone):  # the process that hosts it has ended, and so have all
                self._store.set(f"recorded/{number}", runtime.process.host)
        elif isinstance(runtime, LocalRuntime):
            runtime.record.close(runtime.now())
            if self._folder is not None:
                merge_records(self._folder, keep=True)

    def merge(self) -> None:
        """Merge the records of this host if we are its first learner; all ranks have ended or are about to."""
        if self._world is None or self._folder is None or self._world.elastic:
            return
        total, deadline = self._servers + self.size, time.monotonic() + RECORD_SECONDS
        hosts: dict[int, str] = {}
        with contextlib.suppress(StoreGone):
            while len(hosts) < total and time.monotonic() < deadline:
                hosts = {n: host for n in range(total) if (host := self._store.get(f"recorded/{n}")) is not None}
                if len(hosts) < total:
                    time.sleep(POLL_SECONDS)
        first = min((n for n, host in hosts.items() if n >= self._servers and host == self._world.host), default=None)
        if first in (None, self.learner):
            merge_records(self._folder, keep=True)

    def _begin_record(self, *, resumed: bool) -> None:
        """Make the folder of the records; one that has another run's is refused."""
        folder = self._folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if resumed or (launched is not None and launched.attempt):
            return  # the checkpoint restores the records too; one that was lost leaves what it has recorded
        numbers, whole = [*self.hosted, self.learner], folder / "record.jsonl"
        mine = [folder / f"record-{number}.jsonl" for number in numbers]
        if restarted():
            for path in mine:
                path.unlink(missing_ok=True)
        elif any(path.exists() for path in [*mine, whole]):
            raise SettingsError(f"{folder}: already has a record; give record= a new folder")


def restarted() -> bool:
    """Return whether the launcher has started this program before, after a loss."""
    if launched is not None:
        return launched.job_attempt > 0
    world = environment.find() if find_source(os.environ) in ("torchrun", "slurm") else None
    return world is not None and world.restarted


def find_source(variables: Mapping[str, str]) -> Source:
    """Return who says which ranks there are; a program that seems to be one of several never trains alone.

    The program's own process group comes first.  ``srun`` sets the variables of Slurm and of PMI or PMIx at once; they
    name the same ranks, and Slurm's are used.  ``mpirun`` inside of a Slurm job sets other ranks than Slurm has.
    """
    if dist.is_available() and dist.is_initialized():
        return "group" if dist.get_world_size() > 1 else "alone"
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return "torchrun"
    steps = "SLURM_STEP_ID" in variables and int(variables.get("SLURM_NTASKS", "1")) > 1
    ranks = {variables[name] for name in mpi.RANK_VARIABLES if name in variables}
    if steps and ranks <= {variables.get("SLURM_PROCID")}:
        return "slurm"
    if ranks:
        return "mpi"
    if int(variables.get("WORLD_SIZE", "1") or 1) > 1:
        raise SettingsError(
            f"join: WORLD_SIZE is {variables['WORLD_SIZE']}, but there is no RANK and no process group yet; "
            "call torch.distributed.init_process_group before join, or start the program by torchrun"
        )
    return "alone"


def mpi_size() -> int:
    """Return the number of ranks of this MPI job."""
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.size)


def make_world(source: Source) -> LoopWorld:
    """Return the world of this process; all its processes call this, in the same order of their joins."""
    if source == "group":
        return _group_world()
    if source == "mpi":
        return _mpi_world()
    if source == "alone":
        store, _ = _own_store()
        return LoopWorld(0, 1, store, environment.host_name(), LOOPBACK)
    world = environment.find()
    assert world is not None
    return _launched_world(world)


@functools.cache
def _launched_world(world: environment.World) -> LoopWorld:
    """Meet in a file, or by the store of torchrun or Slurm."""
    siblings = environment.Siblings(world)
    if world.size == 1:
        meeting = Meeting(_own_store()[0], LOOPBACK)
    elif on_one_host(world):
        meeting = meet_in_file(world, siblings.has_ended)
    else:
        place = StorePlace(connect_world(world, Options().heartbeat_timeout), siblings.has_ended)
        meeting = meet(world.rank, world.size, place)
    return LoopWorld(
        world.rank, world.size, meeting.store, environment.host_name(), meeting.address, has_ended=siblings.has_ended
    )


@functools.cache
def _own_store() -> tuple[KeyValueStore, int]:
    """Host a store for the threads of this process alone."""
    return start_store(LOOPBACK)


@functools.cache
def _group_world() -> LoopWorld:
    """Meet in a store of our own, whose address goes through the store of the program's process group.

    So any kind of process group will do, and what waits in our store never holds up the program's own operations.
    """
    given: Any = dist.PrefixStore("roundelay", dist.distributed_c10d._get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    meeting = meet(rank, size, _GroupPlace(given))
    return LoopWorld(rank, size, meeting.store, environment.host_name(), meeting.address)


class _GroupPlace:
    """The store of the program's own process group."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> str:
        return str(self._store.get(key).decode())


@functools.cache
def _mpi_world() -> LoopWorld:
    rank = mpi.start()
    meeting = meet(rank, mpi_size(), _MpiPlace(rank))
    return LoopWorld(rank, mpi_size(), meeting.store, environment.host_name(), meeting.address)


class _MpiPlace:
    """Messages of MPI; all ranks put and get in the same order."""

    def __init__(self, rank: int) -> None:
        self._rank, self._hosts = rank, list[str]()

    def put(self, key: str, value: str) -> None:
        from mpi4py import MPI

        if key == "store":
            MPI.COMM_WORLD.bcast(value, root=0)
        else:
            self._hosts = MPI.COMM_WORLD.allgather(value)

    def get(self, key: str) -> str:
        from mpi4py import MPI

        return str(MPI.COMM_WORLD.bcast(None, root=0)) if key == "store" else self._hosts[int(key.partition("/")[2])]

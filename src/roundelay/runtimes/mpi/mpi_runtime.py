"""Learners under MPI: one per rank, on one host or many, as mpiexec started them.

MPI does not survive the loss of a rank: a rank that fails ends the job, and the run can be resumed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import stat
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from roundelay.communicator import gather_json
from roundelay.errors import CommunicationError, MissingExtra
from roundelay.learner import Learner
from roundelay.runs.record import Record, merge_records
from roundelay.runtime import GradientWork, MakePlan, Membership
from roundelay.runtimes.blocking import Blocking
from roundelay.runtimes.wall_clock import WallClock, sleep
from roundelay.strategy import Strategy

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Where a process finds its rank: MPICH, Intel MPI and Slurm's PMI-2; PMIx; Open MPI."""

EXIT_SECONDS = 60.0  # how long a rank that exits without closing its run waits for the others
ABANDON_SECONDS = 2.0  # and one that has failed
READING_SECONDS = 1.0  # how long a rank that ends the job waits until mpiexec has read its message


def under_mpi() -> bool:
    """Return whether this process was started by mpiexec, mpirun or srun as one rank of many."""
    return any(name in os.environ for name in RANK_VARIABLES)


def require() -> None:
    """Start MPI; raise `MissingExtra` if it is not installed."""
    try:
        import mpi4py.MPI  # noqa: F401 (importing it starts it)
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError if there is no MPI library
        raise MissingExtra("mpi4py, or an MPI library for it,", "mpi") from error


def start() -> int:
    """Start MPI, let uncaught exceptions end every rank, and return our rank."""
    require()
    _end_all_on_exception()
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank


def runtime(folder: Path | None, *, spans: int = 2000, slow: dict[int, float] | None = None) -> MpiRuntime:
    """Make this rank's runtime; every rank calls this.

    With ``folder``, each rank writes its record there.  ``slow``: by number of a learner, how many times slower it is.
    """
    start()
    return MpiRuntime(folder, spans=spans, slow=slow or {})


def end_all(status: int) -> NoReturn:
    """End every rank of this job, this one too."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    for output in (1, 2):
        _await_reader(output)
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)  # MPICH's Abort may return before the end comes


def _await_reader(output: int) -> None:
    """Wait until the output in a pipe is read: an abort overtakes it, and MPICH's mpiexec then drops it."""
    with contextlib.suppress(OSError):  # it may be closed
        if not stat.S_ISFIFO(os.fstat(output).st_mode):
            return
        deadline = time.monotonic() + READING_SECONDS
        while any(fcntl.ioctl(output, termios.FIONREAD, bytes(4))) and time.monotonic() < deadline:
            time.sleep(0.001)


@functools.cache
def _end_all_on_exception() -> None:
    """Let an uncaught exception end every rank: the others would wait for us forever."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        end_all(1)

    sys.excepthook = hook


class MpiRuntime(WallClock):
    """One rank's runtime.

    The thread that makes it holds the strategy lock from then on, and releases it while it awaits or computes.
    """

    elastic = False

    def __init__(self, folder: Path | None, *, spans: int, slow: dict[int, float]) -> None:
        from mpi4py import MPI

        from roundelay.runtimes.mpi.mpi_transport import MpiTransport
        from roundelay.runtimes.mpi.shared_counter import Counter

        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        record = Record(folder / f"record-{self.rank}.jsonl" if folder else None, clock=self.clock, spans=spans)
        super().__init__(record, self.rank, self.size)
        self.folder, self.slow = folder, slow
        self.transport = MpiTransport(MPI.COMM_WORLD, self)
        self.session = self.transport.session
        self._counter = Counter(self.transport)
        self._closed = self._finished = False
        self._abandoned: str | None = None
        atexit.register(self._leave)

    # -- membership ---------------------------------------------------------------------------------------------

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree with all ranks, once; a second rendezvous can only follow a loss."""
        from roundelay.runtimes.mpi.collectives import Group
        from roundelay.runtimes.mpi.mpi_communicator import MpiCommunicator

        if self.learner is not None:
            raise CommunicationError("a learner was lost, which an MPI job does not survive; resume the run")
        comm = MpiCommunicator(Group(self.transport, self.transport.world), range(self.size))
        reports = await gather_json(comm, report)
        plan = make_plan(reports, []) if self.rank == 0 else None
        plan = (await gather_json(comm, plan))[0]
        self.transport.finish(self.transport.service.Ibarrier())
        self.set_clock(0.0)
        self.learner, learner.comm, learner.index = learner, comm, self.rank
        return Membership(0, self.rank, self.size, plan)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Do nothing: no rank outlives another."""

    def has_newcomers(self, key: str = "") -> bool:
        """Return false: no rank can join an MPI job."""
        return False

    # -- training -----------------------------------------------------------------------------------------------

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Serve requests from now on."""
        self.session.learner, self.session.strategy = learner, strategy

    async def stop_serving(self, learner: Learner) -> None:
        """Send all replies, then stop serving."""
        self.session.wait(lambda: None if self.transport.is_busy else True)
        self.session.strategy = None
        self._closed = True

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a common counter."""
        return self._counter.add(key, amount)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep without the strategy lock."""
        return Blocking(lambda: sleep(self, self.session.strategy_lock, seconds))

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Compute the gradient without the strategy lock."""
        with self._computing(learner, busy=bool(work.parts)) as guard:

            def ready(part: slice) -> None:
                with guard():
                    work.ready(part)

            work.run(ready if work.parts else None)

    def computing(self, learner: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """Release the strategy lock; yield what acquires it."""
        return self._computing(learner, busy=True)

    @contextlib.contextmanager
    def _computing(self, learner: Learner, *, busy: bool) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        begin = self.now()
        with self.transport.computing(busy=busy or self._counter.is_used):
            yield self.session.strategy_lock.acquired
            factor = 1.0 if learner.is_server else self.slow.get(learner.index, 1.0)
            if factor > 1.0:
                time.sleep((factor - 1.0) * (self.now() - begin))
        if learner.frames:
            self.span("compute", begin, frames=learner.frames)

    def finish(self) -> None:
        """End the run; every rank calls this, and rank 0 merges the records."""
        self._finish(None)

    def _finish(self, timeout_seconds: float | None) -> None:
        if self._finished:
            return
        if not self.transport.finish(self.transport.service.Ibarrier(), timeout_seconds):
            why = f": {self._abandoned}" if self._abandoned else ""
            raise CommunicationError(f"{self.member} exited while others still train{why}")
        self._finished = True
        self.record.close(self.now())
        self.session.close()
        self.transport.finish(self.transport.service.Ibarrier())
        if self.rank == 0 and self.folder is not None:
            merge_records(self.folder, keep=True)
        self._counter.free()
        atexit.unregister(self._leave)

    def abandon(self, reason: str) -> None:
        """Note why this rank ends without the others, who cannot go on: the end of this program ends them all."""
        self._abandoned = reason

    def _leave(self) -> None:
        """Finish at the end of a user's script that does not call `finish`; otherwise MPI would hang."""
        patience = EXIT_SECONDS if self._abandoned is None else min(EXIT_SECONDS, ABANDON_SECONDS)
        try:
            self._finish(None if self._closed else patience)
        except CommunicationError as error:
            sys.stderr.write(f"roundelay: {error}\n")
            end_all(2)

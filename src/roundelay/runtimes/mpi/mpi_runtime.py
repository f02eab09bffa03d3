"""Learners under MPI: one a rank, on one host or many, as mpiexec started them.

MPI cannot survive the loss of a rank: whoever fails ends the job, and the run is resumed.
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
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from roundelay.errors import CommunicationError, MissingExtra
from roundelay.learner import Learner
from roundelay.runs.record import Kind, Record, merge_records
from roundelay.runtime import Clock, GradientWork, MakePlan, Membership
from roundelay.runtimes.strategy_lock import run_blocking
from roundelay.strategy import Strategy
from roundelay.training.evaluation import gather_json

__all__ = ["MpiRuntime", "end_all", "require", "runtime", "start", "under_mpi"]

T = TypeVar("T")
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""What tells a process its rank: MPICH, Intel MPI and Slurm's PMI-2; PMIx; Open MPI."""


EXIT_SECONDS = 60.0  # for the others, of a rank that exits without having closed its run
READING_SECONDS = 1.0  # for mpiexec, of a rank that has said why it ends all


def under_mpi() -> bool:
    """Tell whether this process was started by mpiexec, mpirun or srun as one rank of many."""
    return any(name in os.environ for name in RANK_VARIABLES)


def require() -> None:
    """Start MPI, or say what is missing."""
    try:
        import mpi4py.MPI  # noqa: F401 (importing it starts it)
    except (ImportError, RuntimeError) as error:  # mpi4py says RuntimeError where there is no MPI library
        raise MissingExtra("mpi4py, or an MPI library for it,", "mpi") from error


def start() -> int:
    """Start MPI, have what nobody catches end every rank, and return ours."""
    require()
    _end_all_with_us()
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank


def runtime(folder: Path | None, *, spans: int = 2000, slow: dict[int, float] | None = None) -> MpiRuntime:
    """Make this rank's runtime; every rank does so at about the same time.

    With ``folder``, each rank writes its record there.  ``slow`` makes learners slower by a factor, by their number.
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
    """Wait until what was written to a pipe is read: an abort overtakes it, and MPICH's mpiexec then drops it."""
    with contextlib.suppress(OSError):  # it may be closed
        if not stat.S_ISFIFO(os.fstat(output).st_mode):
            return
        deadline = time.monotonic() + READING_SECONDS
        while any(fcntl.ioctl(output, termios.FIONREAD, bytes(4))) and time.monotonic() < deadline:
            time.sleep(0.001)


@functools.cache
def _end_all_with_us() -> None:
    """See that an exception nobody catches ends every rank: the others would wait for us for good."""
    said = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        said(kind, error, trace)
        end_all(1)

    sys.excepthook = hook


class MpiRuntime:
    """One rank's clock, membership and serving.

    Whoever makes it holds the baton from then on, and puts it down wherever it awaits or computes.
    """

    clock: Clock = "wall"
    elastic = False

    def __init__(self, folder: Path | None, *, spans: int, slow: dict[int, float]) -> None:
        from mpi4py import MPI

        from roundelay.runtimes.mpi.progress_engine import Engine
        from roundelay.runtimes.mpi.shared_counter import Counter

        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        self.initial_rank, self.initial_size = self.rank, self.size
        self.folder, self.slow = folder, slow
        self.record = Record(folder / f"record-{self.rank}.jsonl" if folder else None, clock=self.clock, spans=spans)
        self._start = time.monotonic()
        self._me: Learner | None = None
        self._still_since: float | None = None
        self.engine = Engine(MPI.COMM_WORLD, self)
        self._counter = Counter(self.engine)
        self._closed = self._finished = False
        atexit.register(self._leave)

    @property
    def member(self) -> str:
        """Our name in records and messages."""
        if self._me is None:
            return f"learner {self.rank}"
        return f"{'server' if self._me.is_server else 'learner'} {self._me.index}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end; we hold the baton all the while."""
        return run_blocking(work)

    # -- the clock and the record -------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the seconds since all were here."""
        return time.monotonic() - self._start

    def note(self, kind: Kind, begin: float, end: float, **what: Any) -> None:
        """Record how time was spent, unless learners meet: all of that is evaluation."""
        if self._still_since is None:
            self.record.span(kind, self.member, begin, end, **what)

    def count_bytes(self, count: float) -> None:
        """Add to the bytes that this learner has sent."""
        if self._still_since is None:
            self.record.add(self.member, "bytes", count)

    def pause_clock(self, *, paused: bool) -> None:
        """Record what learners do when they meet as evaluation, whatever it is."""
        if paused:
            self._still_since = self.now()
        elif self._still_since is not None:
            begin, self._still_since = self._still_since, None
            self.note("evaluate", begin, self.now())

    def capture(self) -> dict[str, Any]:
        """Return the time and the record's place."""
        return {"now": self.now(), "record": self.record.mark()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._start = time.monotonic() - state["now"]
        self._still_since = self.now()
        if "record" in state:
            self.record.rewind(state["record"])

    # -- membership ---------------------------------------------------------------------------------------------

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree once with everyone; a second time would be after a loss."""
        from roundelay.runtimes.mpi.mpi_communicator import MpiCommunicator

        if self._me is not None:
            raise CommunicationError("a learner was lost, which an MPI job cannot survive; the run can be resumed")
        comm = MpiCommunicator(self.engine, self.engine.world, range(self.size))
        reports = await gather_json(comm, report)
        plan = make_plan(reports, []) if self.rank == 0 else None
        plan = (await gather_json(comm, plan))[0]
        self.engine.finish(self.engine.service.Ibarrier())
        self._start, self._me, learner.comm, learner.index = time.monotonic(), learner, comm, self.rank
        return Membership(0, self.rank, self.size, plan)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Put nothing down: nobody outlives anybody."""

    def has_newcomers(self, key: str = "") -> bool:
        """Nobody joins an MPI job."""
        return False

    # -- training -----------------------------------------------------------------------------------------------

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Let requests in."""
        self.engine.start_serving(learner, strategy)

    async def stop_serving(self, learner: Learner) -> None:
        """Let no more requests in, and see that all answers have left."""
        self.engine.drain()
        self.engine.stop_serving()
        self._closed = True

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a common number."""
        return self._counter.add(key, amount)

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Take the gradient with the baton down."""
        with self._computing(learner, busy=bool(work.parts)) as guard:

            def ready(part: slice) -> None:
                with guard():
                    work.ready(part)

            work.run(ready if work.parts else None)

    def computing(self, learner: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """Put the baton down; what is yielded takes it."""
        return self._computing(learner, busy=True)

    @contextlib.contextmanager
    def _computing(self, learner: Learner, *, busy: bool) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        begin = self.now()
        with self.engine.computing(busy=busy):
            yield self.engine.strategy_lock.acquired
            factor = 1.0 if learner.is_server else self.slow.get(learner.index, 1.0)
            if factor > 1.0:
                time.sleep((factor - 1.0) * (self.now() - begin))
        if learner.frames:
            self.note("compute", begin, self.now(), frames=learner.frames)

    def finish(self) -> None:
        """End it, when all have trained: every rank calls this, and rank 0 leaves one record behind."""
        self._finish(None)

    def _finish(self, timeout_seconds: float | None) -> None:
        if self._finished:
            return
        if not self.engine.finish(self.engine.service.Ibarrier(), timeout_seconds):
            raise CommunicationError(f"{self.member} left a run that others are still in")
        self._finished = True
        self.record.close(self.now())
        self.engine.stop()
        self.engine.finish(self.engine.service.Ibarrier())
        if self.rank == 0 and self.folder is not None:
            merge_records(self.folder, keep=True)
        self._counter.free()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Finish at the end of a script of the user's own, which knows nothing of this; MPI would hang otherwise."""
        try:
            self._finish(None if self._closed else EXIT_SECONDS)
        except CommunicationError as error:
            sys.stderr.write(f"roundelay: {error}\n")
            end_all(2)

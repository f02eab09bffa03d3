"""Start learners under mpiexec from a process that is not under it; and what each of them runs."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from roundelay.errors import CommunicationError, MissingExtra, RoundelayError, SettingsError
from roundelay.files import write_bytes
from roundelay.runs.record import merge_records
from roundelay.runtimes.mpi import mpi_runtime as mpi
from roundelay.runtimes.processes.launcher import rebuild
from roundelay.runtimes.processes.learner_process import find_entry

__all__ = ["find_mpiexec", "run", "run_here"]

log = logging.getLogger(__name__)

Entry = Callable[[mpi.MpiRuntime, dict[str, Any]], Any]

BANNERS = (b"=" * 83, b"-" * 74)  # by which MPICH and Open MPI begin to speak of a rank that died
OWN = (1, 2)  # statuses that our ranks end by; MPICH gives a signal's number as it is
TERMINATE_SECONDS = 5.0  # for mpiexec to end its ranks when it is told to


def run(
    entry: str,
    settings: dict[str, Any],
    *,
    size: int,
    folder: Path | None = None,
    threads: int = 1,
    spans: int = 2000,
    slow: dict[int, float] | None = None,
) -> list[Any]:
    """Call ``entry`` on each of ``size`` ranks under mpiexec; return what each returned, in rank order.

    ``entry`` is ``package.module:function`` or ``path/to/file.py:function``, and is called as
    ``function(runtime, settings)``; settings and results are JSON.  A rank that raises ends all, and its error is
    raised here; Ctrl-C ends all too.
    """
    if size < 1:
        raise SettingsError(f"learners must be at least 1, not {size}")
    command = [*find_mpiexec(), "-n", str(size), sys.executable, "-m", __name__]
    told = {"entry": entry, "settings": settings, "threads": threads, "spans": spans}
    told |= {"folder": str(folder) if folder else None, "slow": list((slow or {}).items())}
    with (
        tempfile.TemporaryDirectory(prefix="roundelay-mpi-", ignore_cleanup_errors=True) as name,
        (Path(name) / "job.json").open("w+", encoding="utf-8") as file,
    ):
        json.dump(told, file)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)  # as long as we live: a rank that gets it removes all of this, and ends
        status = _watch([*command, name], Path(name), threads)
        if folder is not None and any(folder.glob("record-*.jsonl")):
            merge_records(folder, keep=True)  # a job that failed has not done it itself
        _raise_first(Path(name))  # some ranks outlive mpiexec by a moment
        results = [Path(name) / f"result-{rank}.json" for rank in range(size)]
        if status or not all(result.exists() for result in results):
            raise CommunicationError(f"mpiexec: {_describe(status)}; the run can be resumed")
        return [json.loads(result.read_text(encoding="utf-8")) for result in results]


def run_here(
    entry: str | Entry,
    settings: dict[str, Any],
    *,
    folder: Path | None = None,
    spans: int = 2000,
    slow: dict[int, float] | None = None,
    prepare: Callable[[], object] | None = None,
) -> Any:
    """Call ``entry`` on this rank, which mpiexec has started; return what it returned.

    Every rank calls this.  Rank 0 calls ``prepare`` before any other does anything, to make the run's folder, say.  One
    that raises, there too, says why in one line and ends all.
    """
    rank = _Rank()
    with rank.ending_all(None):
        mpi.require()
        if prepare is not None:
            _prepare(prepare)
        runtime = rank.runtime = mpi.runtime(folder, spans=spans, slow=slow)
        function: Any = find_entry(entry) if isinstance(entry, str) else entry
        result = function(runtime, settings)
        runtime.finish()
    return result


def _prepare(prepare: Callable[[], object]) -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        prepare()
    MPI.COMM_WORLD.Barrier()


def find_mpiexec() -> list[str]:
    """Return the mpiexec that belongs to this Python, or else the one on the path, with the flags it needs."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtra("mpi4py", "mpi")
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise MissingExtra("mpiexec", "mpi")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    if "Open MPI" not in version.stdout and "OpenRTE" not in version.stdout:
        return [found]
    # As many ranks as are asked for, wherever there is room, also for root in a container.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *root, "--oversubscribe", "--bind-to", "none"]


# -- the launcher -----------------------------------------------------------------------------------------------


def _watch(command: list[str], job: Path, threads: int) -> int:
    """Run mpiexec to its end, or end it; return its status."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    environment.setdefault("OMPI_MCA_osc", "^ucx")  # Open MPI's windows over UCX complain on one host
    process = subprocess.Popen(  # noqa: S603 (no shell)
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal comes to us alone, and we end the ranks
    )
    assert process.stdout is not None
    assert process.stderr is not None
    pumps = [
        threading.Thread(target=_pump, args=(source, target, job), daemon=True)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    ]
    for pump in pumps:
        pump.start()
    try:
        return process.wait()
    finally:
        _end(process, job)
        for pump in pumps:
            pump.join()
        process.stdout.close()
        process.stderr.close()


def _end(process: subprocess.Popen[bytes], job: Path) -> None:
    """See that mpiexec is gone, and its ranks with it."""
    if process.poll() is None:
        (job / "ended").touch()
        process.terminate()
        try:
            process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("mpiexec does not end its ranks; they are killed")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _pump(source: IO[bytes], target: TextIO, job: Path) -> None:
    """Pass on what ranks print, but not what mpiexec has to say about ranks that have failed."""
    blank = b""  # held back: mpiexec begins so too
    for line in source:
        if (job / "ended").exists() or any(job.glob("error-*.json")) or line.strip() in BANNERS:
            break
        if line == b"\n" and not blank:
            blank = line
            continue
        target.write((blank + line).decode(errors="replace"))
        target.flush()
        blank = b""
    for _ in source:  # so that nobody blocks on a full pipe
        pass


def _raise_first(job: Path) -> None:
    """Raise what the first rank that failed has raised."""
    failed = sorted(job.glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not failed:
        return
    raise rebuild(json.loads(failed[0].read_text(encoding="utf-8")))


def _describe(status: int) -> str:
    number = -status if status < 0 else status - 128 if status > 128 else status
    if status not in OWN and (status < 0 or number in set(signal.Signals)):
        return f"a rank was ended by {signal.Signals(number).name}"
    return f"the ranks ended without a result, status {status}"


# -- what a rank does -------------------------------------------------------------------------------------------


class _Rank:
    """This process, as one that can fail."""

    runtime: mpi.MpiRuntime | None = None

    @contextlib.contextmanager
    def ending_all(self, job: Path | None) -> Iterator[None]:
        """End every rank where this one raises, after saying why: in a file of ``job`` or else in a line."""
        try:
            yield
        except MissingExtra:
            raise  # there is no MPI to end anything with
        except BaseException as error:
            from mpi4py import MPI

            rank = MPI.COMM_WORLD.rank
            member = self.runtime.member if self.runtime is not None else f"learner {rank}" if job is not None else None
            message = _one_line(error, member)
            if job is not None:
                told = {"type": type(error).__name__, "message": message, "traceback": traceback.format_exc()}
                write_bytes(job / f"error-{rank}.json", json.dumps(told).encode())
            else:
                sys.stderr.write(f"roundelay: {message}\n")
            mpi.end_all(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 2)


def _one_line(error: BaseException, member: str | None) -> str:
    """Return the error's message with the learner named, if it is one's own."""
    message = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted"
    elif not isinstance(error, RoundelayError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return message if member is None or message.startswith(("learner ", "server ")) else f"{member}: {message}"


def _end_with_launcher(job: Path) -> None:
    """End this rank when the launcher is gone, whatever killed it: the system then takes its lock from it."""
    with (job / "job.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    shutil.rmtree(job, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Be one rank of a job that `run` has started."""
    job, rank = Path(sys.argv[1]), _Rank()
    with rank.ending_all(job):
        threading.Thread(target=_end_with_launcher, args=(job,), name="launcher", daemon=True).start()
        told = json.loads((job / "job.json").read_text(encoding="utf-8"))
        import torch

        torch.set_num_threads(told["threads"])
        folder = Path(told["folder"]) if told["folder"] else None
        slow = {int(learner): float(factor) for learner, factor in told["slow"]}
        runtime = rank.runtime = mpi.runtime(folder, spans=told["spans"], slow=slow)
        function: Any = find_entry(told["entry"])
        result = function(runtime, told["settings"])
        write_bytes(job / f"result-{runtime.rank}.json", json.dumps(result).encode())
        runtime.finish()


if __name__ == "__main__":
    main()

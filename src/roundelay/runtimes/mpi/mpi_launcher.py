"""Start learners under mpiexec from a process outside of it, and what each rank runs."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from roundelay.errors import CommunicationError, MissingExtra, SettingsError
from roundelay.files import write_bytes
from roundelay.runs.record import merge_records
from roundelay.runtimes.entry_point import describe_error, find_entry, rebuild_error, report_error
from roundelay.runtimes.mpi import mpi_runtime as mpi

log = logging.getLogger(__name__)

Entry = Callable[[mpi.MpiRuntime, dict[str, Any]], Any]

BANNERS = (b"=" * 83, b"-" * 74)  # the first line of MPICH's and Open MPI's messages about a rank that died
OWN = (1, 2)  # exit statuses of our own ranks; MPICH returns the number of a signal unchanged
TERMINATE_SECONDS = 5.0  # how long mpiexec may take to end its ranks


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
    ``function(runtime, settings)``; settings and results are JSON.  If a rank raises, all end and its error is
    raised here; Ctrl-C ends all too.
    """
    if size < 1:
        raise SettingsError(f"learners must be at least 1, not {size}")
    command = [*find_mpiexec(), "-n", str(size), sys.executable, "-m", __name__]
    job = {"entry": entry, "settings": settings, "threads": threads, "spans": spans}
    job |= {"folder": str(folder) if folder else None, "slow": list((slow or {}).items())}
    with (
        tempfile.TemporaryDirectory(prefix="roundelay-mpi-", ignore_cleanup_errors=True) as name,
        (Path(name) / "job.json").open("w+", encoding="utf-8") as file,
    ):
        json.dump(job, file)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)  # until we end: a rank that gets the lock removes this folder and ends
        status = _watch([*command, name], Path(name), threads)
        if folder is not None and any(folder.glob("record-*.jsonl")):
            merge_records(folder, keep=True)  # a job that failed has not merged them
        _raise_first(Path(name))  # some ranks may still run for a moment
        results = [Path(name) / f"result-{rank}.json" for rank in range(size)]
        if status or not all(result.exists() for result in results):
            raise CommunicationError(f"mpiexec: {_describe(status)}; resume the run")
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

    Every rank calls this.  Rank 0 calls ``prepare`` before any other rank continues, for example to make the run's
    folder.  A rank that raises, also in ``prepare``, prints its error in one line and ends all.
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
    """Return the command of mpiexec, beside this Python or else on the path, with the flags it needs."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtra("mpi4py", "mpi")
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise MissingExtra("mpiexec", "mpi")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    if "Open MPI" not in version.stdout and "OpenRTE" not in version.stdout:
        return [found]
    # Allow any number of ranks on this host, and root in a container.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *root, "--oversubscribe", "--bind-to", "none"]


# -- the launcher -----------------------------------------------------------------------------------------------


def _watch(command: list[str], job: Path, threads: int) -> int:
    """Run mpiexec to its end; return its status."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    environment.setdefault("OMPI_MCA_osc", "^ucx")  # Open MPI's windows over UCX print warnings on one host
    process = subprocess.Popen(  # noqa: S603 (no shell)
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal reaches only this process, which ends the ranks
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
    """End mpiexec and its ranks."""
    if process.poll() is None:
        (job / "ended").touch()
        process.terminate()
        try:
            process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("mpiexec does not end its ranks; killing them")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _pump(source: IO[bytes], target: TextIO, job: Path) -> None:
    """Copy the output of the ranks, but not mpiexec's messages about failed ranks."""
    blank = b""  # held back: mpiexec's messages begin with one too
    for line in source:
        if (job / "ended").exists() or any(job.glob("error-*.json")) or line.strip() in BANNERS:
            break
        if line == b"\n" and not blank:
            blank = line
            continue
        target.write((blank + line).decode(errors="replace"))
        target.flush()
        blank = b""
    for _ in source:  # so that no rank blocks on a full pipe
        pass


def _raise_first(job: Path) -> None:
    """Raise the error of the first rank that failed."""
    failed = sorted(job.glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not failed:
        return
    raise rebuild_error(json.loads(failed[0].read_text(encoding="utf-8")))


def _describe(status: int) -> str:
    number = -status if status < 0 else status - 128 if status > 128 else status
    if status not in OWN and (status < 0 or number in set(signal.Signals)):
        return f"a rank was ended by {signal.Signals(number).name}"
    return f"the ranks ended without a result, status {status}"


# -- what a rank does -------------------------------------------------------------------------------------------


class _Rank:
    """This rank; ``runtime`` names it in errors."""

    runtime: mpi.MpiRuntime | None = None

    @contextlib.contextmanager
    def ending_all(self, job: Path | None) -> Iterator[None]:
        """If this rank raises, report its error in a file of ``job``, or else in a printed line, and end every rank."""
        try:
            yield
        except MissingExtra:
            raise  # there is no MPI that could end the others
        except BaseException as error:
            from mpi4py import MPI

            rank = MPI.COMM_WORLD.rank
            member = self.runtime.member if self.runtime is not None else f"learner {rank}" if job is not None else None
            if job is not None:
                write_bytes(job / f"error-{rank}.json", json.dumps(report_error(error, member)).encode())
            else:
                sys.stderr.write(f"roundelay: {describe_error(error, member)}\n")
            mpi.end_all(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 2)


def _end_with_launcher(job: Path) -> None:
    """End this rank when the launcher is gone: its lock is free then, even after a kill."""
    with (job / "job.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    shutil.rmtree(job, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Run one rank of a job that `run` has started."""
    job, rank = Path(sys.argv[1]), _Rank()
    with rank.ending_all(job):
        threading.Thread(target=_end_with_launcher, args=(job,), name="launcher", daemon=True).start()
        settings = json.loads((job / "job.json").read_text(encoding="utf-8"))
        import torch

        torch.set_num_threads(settings["threads"])
        folder = Path(settings["folder"]) if settings["folder"] else None
        slow = {int(learner): float(factor) for learner, factor in settings["slow"]}
        runtime = rank.runtime = mpi.runtime(folder, spans=settings["spans"], slow=slow)
        function: Any = find_entry(settings["entry"])
        result = function(runtime, settings["settings"])
        write_bytes(job / f"result-{runtime.rank}.json", json.dumps(result).encode())
        runtime.finish()


if __name__ == "__main__":
    main()

"""The pool of processes: in this one, and what Ctrl-C does to those that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import pausing_work
from roundelay.errors import SettingsError
from roundelay.speech.worker_pool import WorkerPool


def add(shared: int, chunk: int) -> int:
    return shared + chunk


def test_one_job_runs_here_in_order() -> None:
    with WorkerPool(1) as pool:
        assert list(pool.map(add, 10, range(3))) == [10, 11, 12]


def test_torch_has_one_thread_inside_and_its_own_number_after() -> None:
    before = torch.get_num_threads()
    with WorkerPool(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_no_jobs_are_an_error() -> None:
    with pytest.raises(SettingsError, match="jobs must be at least 1, not 0"):
        WorkerPool(0)


STARTING = """
import os, signal, sys
sys.path.insert(0, {here!r})
from roundelay.speech.worker_pool import WorkerPool
from pausing_work import add_slowly

if __name__ == "__main__":
    try:
        with WorkerPool(2) as pool:
            numbers = pool.map(add_slowly, {folder!r}, iter(range(100)))
            print("starting", flush=True)
            next(numbers)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["while workers start", "while workers work"])
def test_ctrl_c_shows_no_traceback_and_leaves_no_process(when: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STARTING.format(here=str(Path(pausing_work.__file__).parent), folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        signs = 2 if when.endswith("work") else 0
        while len(workers := _workers(process.pid)) < 2 or len(list(tmp_path.glob("working-*"))) < signs:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "interrupted\n", "")
    assert not any(map(_is_alive, workers))


def _workers(parent: int) -> list[int]:
    """Return the processes that multiprocessing has spawned for a process."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in _command(child)]


def _command(process: str) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def _is_alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False

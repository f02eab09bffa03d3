"""What a learner's process does under ``roundelay launch``: take its place in the run, then be the user's script."""

from __future__ import annotations

import atexit
import contextlib
import io
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from roundelay.errors import RoundelayError
from roundelay.runtimes.entry_point import report_error
from roundelay.runtimes.processes.membership import RunFinished
from roundelay.runtimes.processes.transport.key_value_store import (
    KeyValueStore,
    StoreGone,
    connect_store,
    inherited_store,
)
from roundelay.user_loop import joined_learner, runtime_detection
from roundelay.user_loop.course import CannotComeBack

__all__ = ["WORK", "be_script", "joined_learner"]  # it is loaded here, once for all scripts

WORK = f"{__name__}:be_script"


def be_script(job: dict[str, Any]) -> int:
    """Run the script that the launcher names, as ``python script.py`` would; return its exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    secret = bytes.fromhex(job["secret"])
    if job["inherited"] is not None:
        store = inherited_store(job["inherited"], secret)
    else:
        store = connect_store(*job["store"], secret=secret)
    reports = store.clone()  # when an error is reported, the other client may be waiting for an answer
    runtime_detection.launched = runtime_detection.LoopWorld(
        rank=job["learner"],
        size=job["learners"],
        store=store,
        host=job["host"],
        address=job["address"],
        elastic=True,
        attempt=job["attempt"],
        job_attempt=job["job_attempt"],
        heartbeat_timeout=job["heartbeat_timeout"],
    )
    torch.set_num_threads(job["threads"])
    np.random.seed()  # all learners were forked with the same state
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a learner may be killed
    sys.argv = [job["script"], *job["arguments"]]
    sys.path.insert(0, str(Path(job["script"]).resolve().parent))
    status = _run(job, reports)
    python: Any = threading  # what the interpreter does at its end, which a forked process has to ask for
    python._shutdown()
    atexit._run_exitfuncs()
    return status


def _run(job: dict[str, Any], store: KeyValueStore) -> int:
    """Run the script; return its exit status.  What it has made must live until the process ends, as in a script."""
    try:
        _kept.append(runpy.run_path(job["script"], run_name="__main__"))
    except SystemExit as end:
        if end.code is None or end.code == 0:
            return 0
        _note(end)
        if isinstance(end.code, int):
            return end.code
        sys.stderr.write(f"{end.code}\n")
        return 1
    except RunFinished as late:
        _note(late)
        return 0
    except CannotComeBack as error:
        _note(error)
        store.set(f"away/{job['learner']}", str(error))
        return 0
    except BaseException as error:
        _note(error)
        shown = _without_ours(error.__traceback__, job["script"])
        if not isinstance(error, RoundelayError):  # the launcher shows its one line
            traceback.print_exception(type(error), error, shown)
        with contextlib.suppress(StoreGone):  # then the launcher is gone
            store.set(f"error/{job['learner']}/{job['attempt']}", report_error(error, f"learner {job['learner']}"))
        return 1
    return 0


_kept: list[dict[str, Any]] = []


def _note(error: BaseException) -> None:
    """Note an error as Python does, so that what is called at exit knows: `join` then leaves without the others."""
    sys.last_value = error


def _without_ours(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Return a traceback from the script's own first line on."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != script:
        found = found.tb_next
    return found or trace

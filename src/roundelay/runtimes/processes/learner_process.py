"""What a learner's process does: connect, call the entry, store its result."""

from __future__ import annotations

import contextlib
import logging
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from roundelay.errors import RoundelayError
from roundelay.runtimes.entry_point import find_entry, report_error
from roundelay.runtimes.processes.membership import RunFinished
from roundelay.runtimes.processes.options import Options, ProcessInfo
from roundelay.runtimes.processes.process_runtime import ProcessRuntime
from roundelay.runtimes.processes.transport.key_value_store import (
    KeyValueStore,
    StoreGone,
    connect_store,
    inherited_store,
)

ENDED_BY_TERM = 128 + signal.SIGTERM
logger = logging.getLogger(__name__)


class _Terminated(SystemExit):
    """The launcher has sent SIGTERM."""


def work(job: dict[str, Any]) -> int:
    """Do ``job`` in this process; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher ends us; a Ctrl-C reaches us all
    signal.signal(signal.SIGTERM, _end)
    options = Options(**{**job["options"], "slow": {int(k): v for k, v in job["options"]["slow"].items()}})
    torch.set_num_threads(options.threads)
    process = ProcessInfo(**job["process"])
    store = _store(job)
    runtime: ProcessRuntime | None = None
    try:
        folder = Path(job["records"]) if job["records"] is not None else None
        runtime = ProcessRuntime(store, process, options, folder=folder, attempt=job.get("attempt", 0))
        runtime.slowed = [(begin, end, factor) for begin, end, factor in job.get("slowed", ())]
        result = find_entry(job["entry"])(runtime, job["settings"])
        store.set(f"result/{process.initial_rank}", result)
        runtime.leave()
    except RunFinished as error:
        logger.info("%s", error)
    except _Terminated:  # at an unknown point: another thread may hold the lock, so close only the record
        if runtime is not None:
            with contextlib.suppress(RoundelayError):  # a full disk, for example
                runtime.record.close(runtime.now())
        runtime = None
        return ENDED_BY_TERM
    except SystemExit as error:
        return int(error.code) if isinstance(error.code, int) else 1
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher may send it because of another's error
        report = report_error(error, runtime.member if runtime else f"learner {process.initial_rank}")
        with contextlib.suppress(StoreGone):  # then the launcher is gone
            store.set(f"error/{process.initial_rank}", report)
        return 1
    finally:
        if runtime is not None:
            runtime.stop()
    return 0


def _store(job: dict[str, Any]) -> KeyValueStore:
    """Return the run's store: by the connection that we have inherited, or on the first host."""
    secret = bytes.fromhex(job["secret"])
    if job["inherited"] is not None:
        return inherited_store(job["inherited"], secret)
    return connect_store(*job["store"], secret=secret)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated(ENDED_BY_TERM)

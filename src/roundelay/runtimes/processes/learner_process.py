"""What a learner's process does: connect, call the entry, hand in its result."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from roundelay.errors import RoundelayError, SettingsError
from roundelay.runtimes.processes.membership import RunFinished
from roundelay.runtimes.processes.process_runtime import Options, ProcessInfo, ProcessRuntime
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, connect_store

__all__ = ["Entry", "find_entry", "work"]

Entry = Callable[[ProcessRuntime, Any], Any]
ENDED_BY_TERM = 128 + signal.SIGTERM
logger = logging.getLogger(__name__)


class _Terminated(SystemExit):
    """The launcher has sent SIGTERM."""


def find_entry(name: str) -> Entry:
    """Return the function called ``package.module:function`` or ``path/to/file.py:function``."""
    where, _, what = name.rpartition(":")
    if not where:
        raise SettingsError(f"entry {name!r}: write package.module:function")
    if where.endswith(".py"):
        path = Path(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise SettingsError(f"entry {name!r}: there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    entry: Entry | None = getattr(module, what, None)
    if entry is None:
        raise SettingsError(f"entry {name!r}: {where} has no {what}")
    return entry


def work(job: dict[str, Any]) -> int:
    """Do ``job`` in this process; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher ends us; a Ctrl-C reaches us all
    signal.signal(signal.SIGTERM, _end)
    options = Options(**{**job["options"], "slow": {int(k): v for k, v in job["options"]["slow"].items()}})
    torch.set_num_threads(options.threads)
    store = connect_store(*job["store"])
    place = ProcessInfo(**job["place"])
    runtime: ProcessRuntime | None = None
    try:
        folder = Path(job["records"]) if job["records"] is not None else None
        runtime = ProcessRuntime(store, place, options, folder=folder, attempt=job.get("attempt", 0))
        runtime.slowed = [(begin, end, factor) for begin, end, factor in job.get("slowed", ())]
        result = find_entry(job["entry"])(runtime, store.get(f"settings/{job['host_number']}"))
        store.set(f"result/{place.initial_rank}", result)
        runtime.leave()
    except RunFinished as error:
        logger.info("%s", error)
    except _Terminated:  # wherever we were: nobody knows whose the baton is, so that nothing is closed but the record
        if runtime is not None:
            with contextlib.suppress(RoundelayError):  # a full disk, say
                runtime.record.close(runtime.now())
        runtime = None
        return ENDED_BY_TERM
    except SystemExit as error:
        return int(error.code) if isinstance(error.code, int) else 1
    except BaseException as error:
        _hand_in(store, place.initial_rank, runtime.member if runtime else f"learner {place.initial_rank}", error)
        return 1
    finally:
        if runtime is not None:
            runtime.stop()
    return 0


def _hand_in(store: KeyValueStore, learner: int, member: str, error: BaseException) -> None:
    """Tell the launcher what went wrong."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which it may send us because of another's error
    message = str(error) if isinstance(error, RoundelayError) else f"{type(error).__name__}: {error}"
    if not message.startswith(member):
        message = f"{member}: {message}"
    told = {"type": type(error).__name__, "message": message, "traceback": traceback.format_exc()}
    with contextlib.suppress(StoreGone):  # then the launcher knows, or is gone itself
        store.set(f"error/{learner}", told)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated(ENDED_BY_TERM)

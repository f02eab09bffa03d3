"""What launchers and the processes they start share: the entry function, and errors that cross processes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any, TypedDict

from roundelay import errors
from roundelay.errors import RoundelayError, SettingsError


class ErrorReport(TypedDict):
    """An error of one process as its launcher reads it, in JSON."""

    type: str
    message: str
    traceback: str


def find_entry(name: str) -> Any:
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
    entry = getattr(module, what, None)
    if entry is None:
        raise SettingsError(f"entry {name!r}: {where} has no {what}")
    return entry


def describe_error(error: BaseException, member: str | None) -> str:
    """Return the message of an error in one line, with ``member`` before it unless it names a member itself."""
    message = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted"
    elif not isinstance(error, RoundelayError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return message if member is None or message.startswith(("learner ", "server ")) else f"{member}: {message}"


def report_error(error: BaseException, member: str | None) -> ErrorReport:
    """Describe an error to a launcher."""
    trace = "".join(traceback.format_exception(error))
    return {"type": type(error).__name__, "message": describe_error(error, member), "traceback": trace}


def rebuild_error(report: ErrorReport) -> RoundelayError:
    """Return the error of a report: of the same class if it is one of Roundelay's, else a `RoundelayError`."""
    kind = getattr(errors, report["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, RoundelayError)):
        kind = RoundelayError
    error = kind.__new__(kind)
    error.args = (report["message"],)
    error.add_note(report["traceback"])
    return error

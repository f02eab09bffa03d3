"""Replay a run, also one whose model and data are objects of a program: the program is run again.

A folder of such a run names its program.  While that is replayed, its runs and studies go below a folder of their own,
each at the path that it had, so that no result of the first time is touched.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.continuation import Replay
from roundelay.experiment.continuation import replay as replay_recorded
from roundelay.runs.reader import read_object
from roundelay.runs.run_folder import RunFolder

_mirror: ContextVar[tuple[Path, Path] | None] = ContextVar("mirror", default=None)
"""While a program is replayed: the folder below which its runs go, and the run that is waited for."""


class _Reached(BaseException):
    """The run that is replayed has ended; no program catches it by mistake."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("replayed")
        self.result = result


def program() -> dict[str, Any]:
    """Return which program this is, for ``run.json``; nothing of an interactive session."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return {}
    return {"program": {"file": str(Path(file).absolute()), "arguments": sys.argv[1:], "directory": str(Path.cwd())}}


def place(out: Path | str | None) -> Path | None:
    """Return where a run or a study of this program goes: to ``out``, unless the program is replayed."""
    if out is None:
        return None
    mirror = _mirror.get()
    return Path(out) if mirror is None else mirror[0].joinpath(*Path(out).absolute().parts[1:])


def ended(folder: Path | None, **result: Any) -> None:
    """Take note that a run has ended; the program stops here if it was replayed for this run."""
    mirror = _mirror.get()
    if mirror is not None and folder == mirror[1]:
        raise _Reached(result)


def replay(path: Path | str, out: Path | str | None = None) -> Replay:
    """Run a recorded run again in the simulator, and compare the weights.

    A run on processes was trained with ``record.order = true``: every learner follows the order that it wrote.  For a
    run of `roundelay.simulate` with ``out`` its program is executed again, up to the end of this run.  ``out`` is a
    folder for the replayed run, if it is wanted.
    """
    folder = RunFolder(Path(path))
    about = read_object(folder.path / "run.json").get("program")
    if not isinstance(about, dict):
        return replay_recorded(path, out)
    if not folder.model.exists():
        raise CheckpointError(f"{path}: has not finished; only a finished run is replayed")
    if out is not None and Path(out).exists():
        raise SettingsError(f"{out} already exists: give a new --out")
    with tempfile.TemporaryDirectory() as root:
        mirrored = Path(root).joinpath(*folder.path.absolute().parts[1:])
        result = _execute(about, Path(root), mirrored, str(path))
        found = _compared(folder.path, mirrored, result, Path(out) if out is not None else None)
        if out is not None:
            shutil.copytree(mirrored, out)
    return found


def _execute(about: dict[str, Any], root: Path, wanted: Path, path: str) -> dict[str, Any]:
    """Execute the program until its run ``wanted`` has ended; return what came of it."""
    file, arguments = Path(str(about.get("file"))), [str(each) for each in about.get("arguments", [])]
    if not file.is_file():
        raise CheckpointError(f"{path}: its program {file} is not there any more")
    directory = Path(str(about.get("directory")))
    token = _mirror.set((root, wanted))
    try:
        with _as_program(file, arguments, directory if directory.is_dir() else Path.cwd()):
            runpy.run_path(str(file), run_name="__main__")
    except _Reached as reached:
        return reached.result
    except SystemExit:
        pass
    finally:
        _mirror.reset(token)
    raise SettingsError(f"{path}: its program {file} has ended without this run; was it changed?")


@contextlib.contextmanager
def _as_program(file: Path, arguments: list[str], directory: Path) -> Iterator[None]:
    """Let this process be like that of the program; what it prints goes to standard error."""
    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [str(file), *arguments], [str(file.parent), *path]
    here = Path.cwd()
    try:
        os.chdir(directory)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(here)
        sys.argv, sys.path[:] = before, path


def _compared(recorded: Path, replayed: Path, result: dict[str, Any], out: Path | None) -> Replay:
    then, now = (load_file(RunFolder(folder).model) for folder in (recorded, replayed))
    if {name: tensor.shape for name, tensor in then.items()} != {name: tensor.shape for name, tensor in now.items()}:
        raise CheckpointError(f"{recorded}: its program makes another model now")
    return Replay(
        result["scores"],
        result["seconds"],
        "virtual",
        equal=all(torch.equal(then[name], now[name]) for name in now),
        difference=max(float((then[name].double() - now[name].double()).abs().max()) for name in now),
        largest=max(float(tensor.double().abs().max()) for tensor in now.values()),
        folder=out,
    )

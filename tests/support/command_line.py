"""How tests call the command line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner

from roundelay.cli import main

ROUNDELAY = [sys.executable, "-m", "roundelay"]
"""In a process of its own, which takes seconds to import torch."""


def without_coverage() -> dict[str, str]:
    """Return the environment of a process that may not write large files, which its own coverage would."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def call(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call the command line in this process, which has torch already; return what a process would have come to."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    command = ["roundelay", *words]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(sys, "argv", command))
        stack.enter_context(contextlib.chdir(cwd or Path()))
        stack.enter_context(_logged_to(err))
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(command, status, *(_text_of(stream) for stream in (out, err)))


@contextlib.contextmanager
def _logged_to(stream: io.TextIOWrapper) -> Iterator[None]:
    """Log as the command line does; it does not itself where pytest listens already."""
    root, handler = logging.getLogger(), logging.StreamHandler(stream)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def _text_of(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def invoke(command: click.Command, *arguments: object) -> str:
    """Call a command in this process; return what it prints."""
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout

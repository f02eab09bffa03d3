"""Errors of a process in one line, and across processes."""

from __future__ import annotations

import json

import pytest

from roundelay.errors import NumericalError, RoundelayError
from roundelay.runtimes.entry_point import describe_error, rebuild_error, report_error


@pytest.mark.parametrize(
    ("error", "member", "text"),
    [
        (NumericalError("the loss\n is nan"), "learner 1", "learner 1: the loss is nan"),
        (NumericalError("server 0: no"), "learner 1", "server 0: no"),
        (ValueError("what?"), "learner 1", "learner 1: ValueError: what?"),
        (ValueError(), None, "ValueError"),
        (KeyboardInterrupt(), "learner 1", "learner 1: interrupted"),
    ],
)
def test_an_error_in_one_line(error: BaseException, member: str | None, text: str) -> None:
    assert describe_error(error, member) == text


def test_an_error_crosses_processes() -> None:
    try:
        raise NumericalError("the loss is nan")
    except NumericalError as error:
        report = json.loads(json.dumps(report_error(error, "learner 3")))
    rebuilt = rebuild_error(report)
    assert type(rebuilt) is NumericalError
    assert str(rebuilt) == "learner 3: the loss is nan"
    assert "test_an_error_crosses_processes" in rebuilt.__notes__[0]
    assert type(rebuild_error({"type": "KeyError", "message": "x", "traceback": ""})) is RoundelayError

"""``roundelay doctor``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from command_line import call


def test_it_says_what_is_here() -> None:
    done = call("doctor")
    assert done.returncode == 0
    lines = {line[5:].split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    assert {"roundelay", "cores", "shared memory", "torch", "accelerator", "mpi"} <= set(lines)
    assert lines["torch"].startswith("has")
    found = json.loads(call("doctor", "--json").stdout)["findings"]
    assert {each["name"] for each in found} == set(lines)


def test_it_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def missing(name: str, *more: Any) -> Any:
        return None if name == "mpi4py" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert "learners under MPI: pip install 'roundelay[mpi]'" in call("doctor").stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_names_an_accelerator(stand_in_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "roundelay", "doctor"]
    said = subprocess.run(command, env=stand_in_environment, capture_output=True, text=True, check=True).stdout
    assert "stand_in:0 to stand_in:3" in said
    assert "stand_in, for means on stand_in" in said

"""Launchers in processes of their own, as each host has one, and two network namespaces that stand for hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).resolve().parent
TOKEN = "2d1c7a4f"
LAUNCHER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import process_jobs
from roundelay.errors import RoundelayError
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.hosts import Hosts
from roundelay.runtimes.processes.options import Options
from pathlib import Path
what = json.loads(sys.argv[2])
folder = Path(what["folder"]) if "folder" in what else None
try:
    results = launcher.run(
        process_jobs.entry(what["entry"]), what["settings"], size=what["size"],
        hosts=Hosts(**what["hosts"]) if "hosts" in what else None,
        folder=folder, options=Options(**what.get("options", {})),
    )
except RoundelayError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
else:
    print(json.dumps(results))
"""


def start(what: dict[str, Any], *prefix: str) -> subprocess.Popen[str]:
    """Start a launcher in a process of its own, by a command that stands before it."""
    if "hosts" in what:
        what = what | {"hosts": {"token": TOKEN} | what["hosts"]}
    command = [*prefix, sys.executable, "-c", LAUNCHER, str(SUPPORT), json.dumps(what)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str], seconds: float = 100.0) -> Any:
    """Return what a launcher printed when it ended."""
    try:
        text, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.communicate()
    return json.loads(text.splitlines()[-1])


@contextlib.contextmanager
def two_namespaces() -> Iterator[list[tuple[str, str]]]:
    """Make two namespaces joined by a cable; yield their names and addresses."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command here")
    names = [f"roundelay-{os.getpid()}-{k}" for k in range(2)]
    addresses = ["10.231.77.1", "10.231.77.2"]
    cables = [f"rdl{os.getpid() % 100000}{k}" for k in "ab"]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(names, cables, addresses, strict=True):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, addresses, strict=True))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

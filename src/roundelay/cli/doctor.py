"""``roundelay doctor``: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import click

from roundelay._version import __version__

EPILOG = """\b
Examples:
  roundelay doctor
  roundelay doctor --json > doctor.json
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXTRAS = {
    "speech": ("kaldi_decoder", "decoding, alignment and word error rates"),
    "synthetic": ("espeakng_loader", "the embedded corpus, which espeak-ng speaks"),
    "mpi": ("mpi4py", "learners under MPI"),
    "export": ("onnxruntime", "roundelay export"),
    "plot": ("matplotlib", "figures of a report as PNG, SVG and PDF"),
    "tensorboard": ("tensorboard", "roundelay watch --tensorboard"),
}
"""By extra: the module that shows whether it is installed, and what it is for."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    name: str
    found: bool
    text: str
    """What was found, or how to get it."""


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """Say what this machine has for training, what is missing, and how to get it."""
    findings = [*look_at_machine(), *look_at_torch(), *look_at_extras()]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(each) for each in findings]}))
        return
    width = max(len(each.name) for each in findings)
    for each in findings:
        click.echo(f"{'has' if each.found else 'no ':4} {each.name:{width}}  {each.text}")


def look_at_machine() -> list[Finding]:
    """Look for Python, cores, shared memory and a browser."""
    from roundelay.runtimes.processes.transport import shared_memory_segments

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = shared_memory_segments.usable()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    return [
        Finding("roundelay", True, f"{__version__} with Python {platform.python_version()} on {sys.platform}"),
        Finding("cores", True, f"{cores}: about as many learners compute at once on the CPU"),
        Finding(
            "shared memory",
            shared,
            "learners of one host use it" if shared else "Linux on x86-64 only; learners of one host use sockets",
        ),
        Finding("Chromium", browser is not None, browser or "only tests of the report need it: apt install chromium"),
    ]


def look_at_torch() -> list[Finding]:
    """Look for torch, accelerators and their collectives."""
    import torch
    import torch.distributed as dist

    found = torch.accelerator.current_accelerator(check_available=True)
    findings = [Finding("torch", True, str(torch.__version__))]
    if found is None:
        return [
            *findings,
            Finding("accelerator", False, 'device = "auto" is the CPU; a GPU needs torch\'s build for it'),
        ]
    count = torch.accelerator.device_count()
    findings.append(
        Finding("accelerator", True, f"{found.type}:0 to {found.type}:{count - 1}; roundelay train uses them")
    )
    library: Any = dist.get_default_backend_for_device(found.type) if dist.is_available() else "undefined"
    known = library not in ("undefined", "gloo")
    text = f"{library}, for means on {found.type}" if known else f"none for {found.type}; means go through host memory"
    return [*findings, Finding("collectives", known, text)]


def look_at_extras() -> list[Finding]:
    """Look for optional packages."""
    findings = []
    for extra, (module, purpose) in EXTRAS.items():
        here = importlib.util.find_spec(module) is not None
        how = _version(module) if here else f"pip install 'roundelay[{extra}]'"
        findings.append(Finding(extra, here, f"{purpose}: {how}"))
    return findings


def _version(module: str) -> str:
    """Return the package of a module with its version."""
    names = metadata.packages_distributions().get(module, [module])
    return f"{names[0]} {metadata.version(names[0])}"

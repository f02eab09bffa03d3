"""Builds the stand-in accelerator once per version of torch, and says how a process gets it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "stand_in_device.cpp"
NAME = "stand_in_extension.so"
CACHE = HERE.parents[2] / "build" / "stand-in"


class CannotBuild(Exception):
    """Why there is no stand-in here."""


@cache
def build() -> Path:
    """Return the folder of the built device, for PYTHONPATH; raise `CannotBuild` where there is no compiler."""
    headers = Path(sysconfig.get_paths()["include"])
    made_by = f"{torch.__version__} {sys.version} {SOURCE.read_text(encoding='utf-8')}"
    folder = CACHE / hashlib.sha256(made_by.encode()).hexdigest()[:16]
    if (folder / NAME).is_file():
        return folder
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CannotBuild("no C++ compiler")
    if not (headers / "Python.h").is_file():
        raise CannotBuild("no Python.h")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait, and find it built
        if not (folder / NAME).is_file():
            _compile(compiler, headers, folder)
    return folder


def _compile(compiler: str, headers: Path, folder: Path) -> None:
    home = Path(torch.__file__).parent
    include = [home / "include", home / "include/torch/csrc/api/include", headers]
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-O1", "-w"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [part for path in include for part in ("-isystem", str(path))]
    command += [str(SOURCE), "-o", str(folder / f"{NAME}.new"), f"-L{home / 'lib'}"]
    command += ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise CannotBuild(f"the compiler failed: {(errors or ['?'])[0]}")
    about = folder / "stand_in-0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stand_in\nVersion: 0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[torch.backends]\nstand_in = stand_in_device:autoload\n", encoding="utf-8")
    (folder / f"{NAME}.new").rename(folder / NAME)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process in which torch has the stand-in, and tests' support is found."""
    before = os.environ.get("PYTHONPATH", "")
    source = HERE.parents[2] / "src"
    paths = [str(build()), str(HERE), str(HERE.parent), str(source), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}

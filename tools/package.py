"""Build the source distribution and the wheel, install the wheel in an empty environment elsewhere, and run it there.

    python tools/package.py [--keep DIR] [--demo] [--constraint constraints.txt]

The wheel is built from the source distribution, so that both are tried.  The environment has no access to this clone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("roundelay/included/an4-dnn.toml", "roundelay/included/studies/papers.toml", "roundelay/py.typed",
          "roundelay/included/clusters/two-racks.toml", "roundelay/included_loop.txt", "roundelay/demo.toml",
          "roundelay/planning/clusters/laptop.toml")  # fmt: skip
COMMANDS = (
    ("--version",),
    ("strategies",),
    ("models",),
    ("init", "--list"),
    ("init", "experiment", "tiny", "--out", "mine.toml"),
    ("train", "an4-dnn", "--dry-run"),
    ("train", "mine.toml", "--out", "runs/mine", "--set", "budget.minibatches=50", "--learners", "2"),
    ("runs",),
    ("plan", "laptop", "--no-sensitivity", "--strategy", "bmuf"),
)


def main() -> None:
    """Build, install, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="also leave the two files in this folder")
    parser.add_argument("--constraint", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--demo", action="store_true", help="also run 'roundelay demo', which takes minutes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="roundelay-package-") as folder:
        place = Path(folder)
        wheel, source = build(place / "dist")
        check(wheel, source)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for path in (wheel, source):
                (options.keep / path.name).write_bytes(path.read_bytes())
        try_out(wheel, place, options.constraint, demo=options.demo)
    print(f"{wheel.name} and {source.name}: built, installed and run")


def build(dist: Path) -> tuple[Path, Path]:
    """Return the wheel, built from the source distribution, and the source distribution."""
    dist.mkdir()
    code = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    _run([sys.executable, "-c", code, "build_sdist", str(dist)], ROOT)
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(dist, filter="data")
    (unpacked,) = (path for path in dist.iterdir() if path.is_dir())
    _run([sys.executable, "-c", code, "build_wheel", str(dist)], unpacked)
    (wheel,) = dist.glob("*.whl")
    return wheel, source


def check(wheel: Path, source: Path) -> None:
    """Raise if a file is missing that users need."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in NEEDED if name not in inside]
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    missing += [name for name in ("README.md", "LICENSE", "pyproject.toml") if name not in packed]
    if missing:
        sys.exit(f"not packaged: {', '.join(missing)}")


def try_out(wheel: Path, place: Path, constraint: Path, *, demo: bool) -> None:
    """Install the wheel in an empty environment and run commands in an empty folder."""
    extras = "[speech,synthetic]" if demo else ""
    venv.create(place / "venv", with_pip=True)
    python = place / "venv" / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraint), f"{wheel}{extras}"], place)
    (place / "empty").mkdir()
    for words in (*COMMANDS, *((("demo",),) if demo else ())):
        print(f"$ roundelay {' '.join(words)}", flush=True)
        _run([str(place / "venv" / "bin" / "roundelay"), *words], place / "empty", quiet=not demo)


def _run(command: list[str], folder: Path, *, quiet: bool = True) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    out = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = done.stdout.decode(errors="replace") if done.stdout else ""
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{said}")


if __name__ == "__main__":
    main()

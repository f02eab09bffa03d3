"""A study's folder: its definition, its results, and a lock for the process that computes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.errors import CheckpointError, SettingsError
from roundelay.files import inside, make_inside, open_own, write_json, write_text
from roundelay.runs.reader import read_object
from roundelay.runs.run_folder import versions
from roundelay.study.definition import Study
from roundelay.study.matrix import Matrix, PlannedCell, describe
from roundelay.study.statistics import LAST

PATIENCE_SECONDS = 10.0  # processes of a killed study end by themselves within moments


class StudyFolder:
    """``study.toml``, ``study.json``, ``settings/CELL.toml`` and ``runs/CELL/``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, name: str) -> Path:
        """Return the folder of a cell's run."""
        return inside(self.path, "runs", name, what="cell")

    def create(self, study: Study, matrix: Matrix) -> None:
        """Write the definition, before any cell is computed."""
        if self.path.exists() and any(self.path.iterdir()) and not (self.path / "study.json").exists():
            others = [path.name for path in self.path.iterdir() if path.name != ".lock"]
            if others:
                raise SettingsError(f"{self.path}: not a study's folder ({others[0]} is there); give --out a new one")
        make_inside(self.path, "settings")
        make_inside(self.path, "runs")
        write_text(self.path / "study.toml", config.dump(study))
        about: dict[str, Any] = {
            "title": study.title,
            "target": config.plain(study.target),
            "budget": {"frames": matrix.frames},
            "baseline": matrix.baseline,
            "blocks": study.blocks,
            "tuning": config.plain(study.tuning) | {"evaluations": LAST},
            "strategies": list(dict.fromkeys(cell.strategy for cell in matrix.cells)),
            "cells": [describe(cell) for cell in [*matrix.trials, *matrix.cells]],
        }
        write_json(self.path / "study.json", about | versions(), sort_keys=False)

    def outcome(self, cell: PlannedCell) -> dict[str, Any] | None:
        """Return the outcome of a cell if it was computed with the same settings, else None."""
        found = read_object(self.run(cell.name) / "cell.json")
        return found if found.get("digest") == cell.digest() else None

    def changed(self, cell: PlannedCell) -> bool:
        """Return whether the cell was computed with other settings."""
        found = read_object(self.run(cell.name) / "cell.json")
        return bool(found) and found.get("digest") != cell.digest()

    def job(self, cell: PlannedCell, study: Study) -> dict[str, Any]:
        """Write the settings of a cell; return the job for a worker."""
        settings = inside(self.path, "settings", f"{cell.name}.toml", what="cell")
        write_text(settings, config.dump(cell.settings))
        decode = config.plain(study.decode) if study.decode is not None and not cell.trial else None
        return {
            "settings": str(settings),
            "on": cell.on,
            "run": str(self.run(cell.name)),
            "cell": describe(cell),
            "digest": cell.digest(),
            "decode": decode,
            "data": cell.settings["task"].get("data"),
        }

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the folder against other studies; yield the lock's descriptor, which workers inherit."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = open_own(self.path / ".lock", os.O_RDWR)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise CheckpointError(
                            f"{self.path}: in use by another study; wait for it, or give another --out"
                        ) from None
                    time.sleep(0.1)
            yield descriptor
        finally:
            os.close(descriptor)

"""A run is a folder: resolved settings, what ran it, the record, and the consensus model."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundelay import config
from roundelay._version import __version__
from roundelay.errors import SettingsError

if TYPE_CHECKING:  # torch takes seconds to import, and those who only read runs need none
    from torch import nn

__all__ = ["RunFolder", "versions", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or none: a temporary file, synced, takes the place of ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class RunFolder:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> Path:
        """The resolved settings."""
        return self.path / "settings.toml"

    @property
    def record(self) -> Path:
        """What happened, a JSON object a line."""
        return self.path / "record.jsonl"

    @property
    def model(self) -> Path:
        """The consensus model's tensors."""
        return self.path / "model.safetensors"

    def create(self, settings: Any, about: dict[str, Any]) -> None:
        """Make the folder, which must be new or empty, with its settings and what runs it."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            resume = f"'roundelay resume {self.path}' goes on with it, or " if self.settings.exists() else ""
            raise SettingsError(f"{self.path}: exists already; {resume}give --out a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.settings, config.dump(settings).encode())
        self.describe(about)

    def describe(self, about: dict[str, Any]) -> None:
        """Say what runs it, and with which versions."""
        write_atomically(self.path / "run.json", json.dumps(about | versions(), indent=2).encode() + b"\n")

    def revise(self, settings: Any, about: dict[str, Any]) -> None:
        """Write changed settings, where a run goes on in another way."""
        write_atomically(self.settings, config.dump(settings).encode())
        write_atomically(self.path / "run.json", json.dumps(about, indent=2).encode() + b"\n")

    def discard(self) -> None:
        """Take back what `create` has written, if nothing was added since: the run has not begun."""
        if {path.name for path in self.path.iterdir()} <= {self.settings.name, "run.json", "record.jsonl"}:
            for path in self.path.iterdir():
                path.unlink()
            self.path.rmdir()

    def save_model(self, module: nn.Module, about: dict[str, Any]) -> None:
        """Write the model and its description, each whole or not at all."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()}
        data = save(tensors)
        write_atomically(self.model, data)
        description = about | {
            "tensors": {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()},
            "parameters": sum(p.numel() for p in module.parameters()),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_atomically(self.path / "model.json", json.dumps(description, indent=2).encode() + b"\n")


def versions() -> dict[str, str]:
    """Say what code runs, so that a result can be had again."""
    import torch

    said = {"roundelay": __version__, "torch": torch.__version__, "python": platform.python_version()}
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return said
    try:
        head = subprocess.run(  # noqa: S603 (fixed arguments, no shell)
            ["git", "-C", str(root), "rev-parse", "HEAD"],  # noqa: S607 (whichever git there is)
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except OSError:
        return said
    return said | ({"commit": head.stdout.strip()} if head.returncode == 0 else {})

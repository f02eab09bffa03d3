"""The folder of a run: resolved settings, versions, the record, and the consensus model."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundelay import config
from roundelay._version import __version__
from roundelay.errors import SettingsError
from roundelay.files import write_bytes, write_json, write_text

if TYPE_CHECKING:  # torch takes seconds to import, and readers of runs need none
    from torch import nn


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
        """The record, one JSON object per line."""
        return self.path / "record.jsonl"

    @property
    def model(self) -> Path:
        """The consensus model's tensors."""
        return self.path / "model.safetensors"

    def create(self, settings: Any, about: dict[str, Any]) -> None:
        """Create the folder, which must be new or empty, with its settings and description."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            resume = f"run 'roundelay resume {self.path}' or " if self.settings.exists() else ""
            raise SettingsError(f"{self.path} already exists: {resume}give a new --out")
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.settings, config.dump(settings))
        self.describe(about)

    def describe(self, about: dict[str, Any]) -> None:
        """Write what runs it, and with which versions."""
        write_json(self.path / "run.json", about | versions(), sort_keys=False)

    def revise(self, settings: Any, about: dict[str, Any]) -> None:
        """Write changed settings, if a run continues in another way."""
        write_text(self.settings, config.dump(settings))
        write_json(self.path / "run.json", about, sort_keys=False)

    def discard(self) -> None:
        """Remove what `create` has written, if nothing was added since: the run has not started."""
        if {path.name for path in self.path.iterdir()} <= {self.settings.name, "run.json", "record.jsonl"}:
            for path in self.path.iterdir():
                path.unlink()
            self.path.rmdir()

    def save_model(self, module: nn.Module, about: dict[str, Any]) -> None:
        """Write the model and its description."""
        write_model(self.model, module, about)


def write_model(path: Path, module: nn.Module, about: dict[str, Any]) -> None:
    """Write a model as safetensors, and ``about`` with its tensors and digest as JSON beside it, each atomically."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    data = save(tensors)
    write_bytes(path, data)
    description = about | {
        "tensors": {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()},
        "parameters": sum(p.numel() for p in module.parameters()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_json(path.with_suffix(".json"), description, sort_keys=False)


def versions() -> dict[str, str]:
    """Return the versions of the code, so that a result can be reproduced."""
    import torch

    said = {"roundelay": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
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

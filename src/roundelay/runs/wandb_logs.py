"""A run that is followed, in Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundelay.errors import MissingExtra
from roundelay.runs.metric_logs import MetricLogs


class WandbLogs(MetricLogs):
    """A run of a project; where it is kept, and whether it is sent, say wandb's own settings (``WANDB_MODE``)."""

    def __init__(self, project: str, run: Path, about: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra("wandb", "wandb") from None
        super().__init__()
        self._run: Any = wandb.init(project=project, name=run.absolute().name, config=about)
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")

    def add(self, name: str, value: float, frames: int) -> None:
        """Log a number; frames are a number of their own, since learners do not report in order."""
        self._run.log({name: value, "frames": frames})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()

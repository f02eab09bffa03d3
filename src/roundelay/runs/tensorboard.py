"""Logs for TensorBoard of a run that is followed."""

from __future__ import annotations

from pathlib import Path

from roundelay.errors import MissingExtra
from roundelay.runs.metric_logs import MetricLogs


class Logs(MetricLogs):
    """Event files in a folder; `write` adds the new events."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard") from None
        super().__init__()
        self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, frames: int) -> None:
        """Write a number."""
        self._writer.add_scalar(name, value, frames)

    def flush(self) -> None:
        """Write what is in memory."""
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()

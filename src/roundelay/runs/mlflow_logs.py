"""A run that is followed, in MLflow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from roundelay.errors import MissingExtra
from roundelay.runs.metric_logs import MetricLogs

REFUSED = re.compile(r"[^\w\-. /]")  # in the name of a metric


class MlflowLogs(MetricLogs):
    """A run of an experiment, on the server or in the files that ``MLFLOW_TRACKING_URI`` names."""

    def __init__(self, experiment: str, run: Path, about: dict[str, Any]) -> None:
        try:
            import mlflow
        except ImportError:
            raise MissingExtra("mlflow", "mlflow") from None
        super().__init__()
        mlflow.set_experiment(experiment)
        self._mlflow: Any = mlflow
        self._run = mlflow.start_run(run_name=run.absolute().name)
        mlflow.log_params({name: str(value) for name, value in about.items()})

    def add(self, name: str, value: float, frames: int) -> None:
        """Log a number."""
        self._mlflow.log_metric(REFUSED.sub("", name), value, step=frames, run_id=self._run.info.run_id)

    def close(self) -> None:
        """Finish the run."""
        self._mlflow.end_run()

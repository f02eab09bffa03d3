"""A run in MLflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from framework_venv import run_there
from roundelay.errors import MissingExtra
from roundelay.runs.mlflow_logs import MlflowLogs
from watched_run import line, make_run, steps

READ = """
import json
from mlflow.tracking import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("speech").experiment_id])
history = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "held out/error")]
print(json.dumps([run.info.status, run.info.run_name, run.data.params["learners"], history, sorted(run.data.metrics)]))
"""


@pytest.mark.slow
def test_a_store_of_files_has_the_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "record.jsonl").write_text(steps(100) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    where = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    run_there("-m", "roundelay", "watch", str(run), "--once", "--mlflow", "speech", folder=tmp_path, environment=where)
    status, name, learners, history, names = json.loads(run_there("-c", READ, folder=tmp_path, environment=where))
    assert (status, name, learners, history) == ("FINISHED", "run", "2", [[3200, 0.4]])
    assert {"loss", "seconds wall", "frames of/learner 0"} <= set(names)


def test_mlflow_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match=r"\[mlflow\]"):
        MlflowLogs("speech", tmp_path, {})

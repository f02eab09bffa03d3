"""Under a real Slurm, where one runs here with a node to spare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from command_line import ROUNDELAY

QUICK = ["--set", "checkpoint.every_frames=20000", "--set", "record.max_spans=20"]


def idle_nodes() -> str:
    if shutil.which("srun") is None:
        return ""
    asked = ["sinfo", "--noheader", "--states", "idle", "--format", "%N"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except subprocess.TimeoutExpired:
        return ""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not idle_nodes(), reason="no Slurm runs here that has an idle node"),
]


def train(root: Path, out: Path, epochs: int) -> list[str]:
    return [
        *ROUNDELAY, "train", str(root / "experiments" / "tiny.toml"), "--out", str(out),
        "--set", f"budget.epochs={epochs}", *QUICK,
    ]  # fmt: skip


def alone(root: Path, out: Path, epochs: int) -> bytes:
    subprocess.run([*train(root, out, epochs), "--learners", "2"], capture_output=True, timeout=110, check=True)
    return (out / "model.safetensors").read_bytes()


def test_tasks_are_learners(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run(
        ["srun", "--ntasks", "2", *train(root, run, 2)], capture_output=True, text=True, timeout=110,
        check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (run / "model.safetensors").read_bytes() == alone(root, tmp_path / "alone", 2)
    record = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    assert sorted(event["minibatch"] for event in record if event["event"] == "step") == list(range(800))
    assert {event["member"] for event in record if event["event"] == "totals"} == {"learner 0", "learner 1"}


@pytest.mark.timeout(240)
def test_a_job_that_was_requeued_resumes(root: Path, tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nexec srun " + " ".join(train(root, run, 15)) + "\n")
    queued = ["sbatch", "--parsable", "--requeue", "--ntasks", "2", "--output", str(tmp_path / "log"), str(script)]
    job = subprocess.run(queued, capture_output=True, text=True, check=True).stdout.strip()
    try:
        await_file(run / "checkpoints", "*/rank-1.json")
        assert not (run / "model.json").exists(), "it had ended already"
        subprocess.run(["scontrol", "requeue", job], check=True)
        await_state(job, "PENDING")
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
        await_file(run, "trace.json")
    finally:
        subprocess.run(["scancel", job], check=True)
    assert (run / "model.safetensors").read_bytes() == alone(root, tmp_path / "alone", 15)
    record = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "resumed" for event in record) == 1
    assert sorted(event["minibatch"] for event in record if event["event"] == "step") == list(range(6000))


def await_state(job: str, state: str) -> None:
    deadline = time.monotonic() + 60
    asked = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    while subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() != state:
        assert time.monotonic() < deadline, f"job {job} is not {state}"
        time.sleep(0.1)


def await_file(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 180
    while not any(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"{folder} has no {pattern}"
        time.sleep(0.05)

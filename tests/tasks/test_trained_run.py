"""From prepared data to words: a run trained by the acoustic task decodes, moved away from its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.experiment.run_training import train
from roundelay.experiment.settings import BudgetSettings, Experiment
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.split_decoding import decode_run
from roundelay.training.training_settings import KeepSettings

KINDS: dict[str, dict[str, Any]] = {
    "frames, adapted features": {"model": {"name": "dnn", "preset": "tiny"}, "kinds": ["plain", "adapted"]},
    "chunks, speaker vectors": {"model": {"name": "lstm", "preset": "tiny"}, "ivectors": True, "chunk": 20},
    "utterances, by CTC": {"model": {"name": "lstm", "preset": "tiny", "cells": 24}, "objective": "ctc"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_decodes_elsewhere(kind: str, toned: str, tmp_path: Path) -> None:
    task = {"name": "acoustic", "data": toned, "batch": 64, "augment": {"frequency_masks": 1}} | KINDS[kind]
    epochs = 25 if "ctc" in str(task) else 8
    experiment = Experiment(
        task,
        optimizer={"name": "Adam", "lr": 0.01},
        budget=BudgetSettings(epochs=epochs),
        keep=KeepSettings(model="average", num_models=2),
        learners=2,
    )
    folder = RunFolder(tmp_path / "run")
    train(experiment, folder.path, on="simulator")
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    folder.path.rename(moved)
    assert Bundle.open(moved).objective == task.get("objective", "ce")
    decoded = decode_run(moved, Path(toned), "dev", language="flat")
    assert decoded.report["wer"] < 35
    written = json.loads((decoded.folder / "wer.json").read_text())
    assert written["wer"] == decoded.report["wer"]

"""Small studies for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = """
title = "small"
strategies = {strategies}
learners = {learners}
seeds = {seeds}
{more}
[target]
value = {target}

[tuning]
rates = {rates}
budget_fraction = 0.5

[experiment]
task = {{ name = "tiny", frames_per_epoch = 640, hidden = [8] }}
batch = {{ size = 16 }}
optimizer = {{ name = "SGD", lr = 0.1 }}
budget = {{ epochs = {epochs}, evaluate_every = 20 }}
"""


def write_study(path: Path, **changes: Any) -> Path:
    """Write a study that takes a second or so."""
    settings = {
        "strategies": '["synchronous", "averaging"]', "learners": "[1, 2]", "seeds": "[1, 2]", "more": "",
        "target": 0.6, "rates": "[0.05, 0.2]", "epochs": 1,
    }  # fmt: skip
    path.write_text(SMALL.format(**settings | changes))
    return path


def fake_cell(folder: Path, planned: dict[str, Any], errors: list[float], *, seconds: float = 1.0) -> None:
    """Leave a computed cell behind: evaluations every ``seconds`` with these errors."""
    run = folder / "runs" / planned["name"]
    run.mkdir(parents=True)
    lines = []
    for k, error in enumerate(errors):
        now = {"clock": planned["clock"], "time": (k + 1) * seconds}
        lines.append({"event": "step", "member": "learner 0", **now, "minibatch": k, "frames": 100, "loss": error})
        lines.append({"event": "evaluate", "member": "learner 0", **now, "minibatch": k + 1, "error": error})
    (run / "settings.toml").write_text(f"learners = {planned['learners']}\n")
    (run / "run.json").write_text(json.dumps({"on": planned["on"]}))
    (run / "record.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    scores = {"error": errors[-1]} if errors else {}
    outcome: dict[str, Any] = {"status": "done", "error": "", "scores": scores, "wer": None}
    outcome["seconds"] = len(errors) * seconds
    (run / "cell.json").write_text(json.dumps(planned | outcome))


def plan_cell(strategy: str, learners: int, seed: int, **more: Any) -> dict[str, Any]:
    """Say of a cell what ``study.json`` does."""
    cell = {
        "name": f"{strategy}-{learners}-seed-{seed}", "strategy": strategy, "learners": learners, "model": "",
        "cluster": "", "on": "simulator", "seed": seed, "rate": 0.1, "trial": False, "regime": "", "frames": 400,
        "clock": "virtual",
    }  # fmt: skip
    return cell | more


def write_folder(folder: Path, cells: list[dict[str, Any]], *, target: float = 0.2) -> None:
    """Write the ``study.json`` of a study with these cells."""
    folder.mkdir(exist_ok=True)
    about = {
        "title": "made up", "target": {"score": "error", "value": target}, "budget": {"frames": 400},
        "baseline": "synchronous", "blocks": 20, "cells": cells,
        "tuning": {"rates": [], "budget_fraction": 1.0, "seed": 0},
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(about))


def made_up(folder: Path) -> list[dict[str, Any]]:
    """One learner needs 4 s; of four learners, fast 1 s, slow 2 s, missed never, odd is outside its regime."""
    seeds = (1, 2, 3)
    cells = [plan_cell("synchronous", 1, seed) for seed in seeds]
    cells += [plan_cell(name, 4, seed) for name in ("slow", "fast", "missed") for seed in seeds]
    cells += [plan_cell("odd", 4, seed, regime="too few blocks") for seed in seeds]
    write_folder(folder, cells)
    curves = {
        "synchronous": ([0.5, 0.4, 0.3, 0.1], 1.0), "slow": ([0.5, 0.2, 0.1, 0.05], 1.0),
        "fast": ([0.4, 0.2, 0.15, 0.15], 0.5), "missed": ([0.5, 0.4, 0.3, 0.3], 0.1), "odd": ([0.1] * 4, 0.1),
    }  # fmt: skip
    for cell in cells:
        errors, seconds = curves[cell["strategy"]]
        fake_cell(folder, cell, errors, seconds=seconds * (1 + cell["seed"] / 100))
    return cells

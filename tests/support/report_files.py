"""Run folders for tests of reports: real ones from the simulator, and records written by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from roundelay.experiment.run_training import train
from roundelay.experiment.settings import Experiment
from roundelay.runs.record import Record

HOSTILE = '<script>alert("x")</script>&\'"<img src=x onerror=alert(1)>'


def simulate_run(folder: Path, strategy: str, learners: int, **changes: Any) -> Path:
    """Train a very small task in the simulator, as `roundelay train` does."""
    table: dict[str, Any] = {
        "task": {"name": "tiny", "frames_per_epoch": 640, "hidden": [8]},
        "batch": {"size": 16},
        "strategy": {"name": strategy},
        "learners": learners,
        "budget": {"minibatches": 80, "evaluate_every": 20},
        "optimizer": {"name": "SGD", "lr": 0.1},
        "cluster": {"name": "a switch", "compute": {"seconds": 0.02, "jitter": 0.1}},
        "seed": 1,
    }
    experiment = Experiment.of(table | changes)
    train(experiment, folder, on="simulator")
    return folder


def write_run(
    folder: Path, strategy: str, learners: int, *, clock: str = "wall", steps: int = 30, slow: float = 1.0
) -> Path:
    """Write a run as a runtime would have, without training anything."""
    folder.mkdir(parents=True)
    quoted = json.dumps(strategy)  # of which TOML understands enough
    (folder / "settings.toml").write_text(
        f'learners = {learners}\nseed = 1\n[task]\nname = "tiny"\n[strategy]\nname = {quoted}\n[optimizer]\nlr = 0.1\n'
        f'[cluster]\nname = "a switch"\nstragglers = [{{ learner = 0, factor = {slow} }}]\n',
        encoding="utf-8",
    )
    about = {
        "on": "simulator" if clock == "virtual" else "processes",
        "learners": learners,
        "roundelay": "0",
        "torch": "0",
    }
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    record = Record(folder / "record.jsonl", clock=clock)
    for step in range(steps):
        for learner in range(learners):
            member, begin = f"learner {learner}", 0.1 * step + 0.001 * learner
            record.span("compute", member, begin, begin + 0.07)
            record.span("communicate", member, begin + 0.07, begin + 0.08)
            record.span("wait", member, begin + 0.08, begin + 0.1)
            record.add(member, "bytes", 1000)
            said = {"minibatch": step * learners + learner, "frames": 16, "loss": 2.0 / (1 + step)}
            record.write("step", member, begin + 0.1, **said, staleness=step % 3)
        if step % 10 == 9:
            scores = {"loss": 1.5 / (1 + step), "error": 0.8 / (1 + step), "distance": 0.1 * learners}
            done = (step + 1) * learners
            record.write("evaluate", "learner 0", 0.1 * step + 0.15, minibatch=done, epoch=1.0, **scores)
    record.close(0.1 * steps)
    (folder / "model.json").write_text(json.dumps({"scores": {"loss": 0.05, "error": 0.03}}), encoding="utf-8")
    return folder


def decode_run(folder: Path, wrong: int, *, name: str = "tiny-test-bigram", utterances: int = 40) -> None:
    """Write what decoding would have: utterances of three words, so many of them with one error."""
    place = folder / "decode" / name
    place.mkdir(parents=True)
    rows = []
    for i in range(utterances):
        heard = "one two four" if i < wrong else "one two three"
        rows.append(
            {
                "utterance": f"u{i}",
                "reference": "one two three",
                "hypothesis": heard,
                "errors": int(i < wrong),
                "words": 3,
            }
        )
    (place / "utterances.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rate = 100 * wrong / (3 * utterances)
    wer = {"wer": rate, "interval": [rate * 0.7, rate * 1.3], "words": 3 * utterances, "errors": wrong}
    (place / "wer.json").write_text(json.dumps(wer), encoding="utf-8")


def write_study(folder: Path, *, missing: int = 0) -> Path:
    """Write a study of two strategies, 1 and 4 learners and two seeds, the last ``missing`` not computed yet."""
    cells = [
        {"name": f"{strategy}-{learners}-seed-{seed}", "strategy": strategy, "learners": learners, "seed": seed,
         "model": "", "cluster": "", "on": "simulator", "rate": 0.1, "trial": False, "regime": "", "frames": 480,
         "clock": "virtual"}
        for strategy in ("synchronous", "bmuf") for learners in (1, 4) for seed in (1, 2)
    ]  # fmt: skip
    for cell in cells[: len(cells) - missing]:
        run = write_run(
            folder / "runs" / str(cell["name"]), str(cell["strategy"]), int(str(cell["learners"])), clock="virtual"
        )
        scores = {"loss": 0.05, "error": 0.03}
        outcome = {"status": "done", "error": "", "scores": scores, "wer": None, "seconds": 3.0}
        (run / "cell.json").write_text(json.dumps(cell | outcome))
    about = {
        "title": f"A study {HOSTILE}", "target": {"score": "error", "value": 0.05}, "budget": {"frames": 480},
        "baseline": "synchronous", "blocks": 20, "cells": cells,
        "tuning": {"rates": [], "budget_fraction": 1.0, "seed": 0},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(about))
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a table of a report."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))

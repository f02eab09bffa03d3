"""Records of a run that is still being written, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def line(event: str, member: str, time: float, **more: Any) -> str:
    return (
        json.dumps({"event": event, "member": member, "clock": "wall", "time": time, **more}, separators=(",", ":"))
        + "\n"
    )


def steps(count: int) -> str:
    lines = [line("compute", f"learner {k % 2}", k / 10, seconds=0.05) for k in range(count)]
    lines += [
        line("step", f"learner {k % 2}", k / 10, minibatch=k, frames=32, loss=2.0 / (k + 1)) for k in range(count)
    ]
    return "".join(lines)


def make_run(folder: Path) -> Path:
    """Make the folder of a run of two learners that has not begun."""
    folder.mkdir()
    (folder / "settings.toml").write_text("learners = 2\n")
    (folder / "run.json").write_text(json.dumps({"learners": 2, "on": "processes", "batch": 32, "minibatches": 40}))
    return folder

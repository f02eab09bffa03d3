"""A process that computes cells, one after another.

``python -m roundelay.study.cell_worker`` reads one JSON object per line, ``{"settings": …, "on": …, "run": …, …}``,
and writes one when the cell is done, failed or diverged.  Torch is imported once, not for every cell.  The process ends
when its standard input ends: after a study is killed, no process writes into its folder.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from roundelay.errors import NumericalError, RoundelayError
from roundelay.files import write_json

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.experiment.settings import Experiment

Job = dict[str, Any]
Outcome = dict[str, Any]


def compute(job: Job, read: Callable[[Path], Experiment] | None = None) -> Outcome:
    """Compute a cell, write ``cell.json`` into its folder, and return the contents; ``read`` reads its settings."""
    began, run = time.monotonic(), Path(job["run"])
    outcome: Outcome = {}
    try:
        outcome = _train(job, run, read)
        if job.get("decode"):
            outcome["wer"] = _decode(run, job)
    except NumericalError as error:
        outcome = {"status": "diverged", "error": _line(error)}
    except Exception as error:
        traceback.print_exc()
        outcome |= {"status": "failed", "error": _line(error)}
    (run / "trace.json").unlink(missing_ok=True)  # the record has the same spans
    return conclude(job, outcome | {"computing_seconds": round(time.monotonic() - began, 3)})


def conclude(job: Job, outcome: Outcome) -> Outcome:
    """Write the outcome of a cell."""
    run = Path(job["run"])
    run.mkdir(parents=True, exist_ok=True)
    nothing: Outcome = {"status": "done", "error": "", "scores": {}, "seconds": None, "wer": None}
    whole: Outcome = job["cell"] | nothing | outcome | {"digest": job["digest"]}
    write_json(run / "cell.json", whole, sort_keys=False)
    return whole


def _train(job: Job, run: Path, read: Callable[[Path], Experiment] | None) -> dict[str, Any]:
    from roundelay.experiment.run_training import train
    from roundelay.experiment.settings import Experiment

    made = train((read or Experiment.read)(Path(job["settings"])), run, on=job["on"])
    for name, value in made.scores.items():
        if not math.isfinite(value):
            raise NumericalError(f"{name} is {value} at the end")
    return {"scores": made.scores, "seconds": made.seconds, "clock": made.clock}


def _decode(run: Path, job: Job) -> dict[str, Any]:
    from roundelay.speech.decoding.split_decoding import decode_run

    settings, data = job["decode"], job.get("data")
    return decode_run(run, Path(data) if data else None, settings["split"], language=settings.get("language")).report


def _line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, RoundelayError) and said else f"{type(error).__name__}: {said}".rstrip(": ")


def _listen(jobs: queue.Queue[Job]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


def _private_output() -> TextIO:
    """Return a file for outcomes, the old standard output; all other output goes to standard error."""
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return outcomes


def main() -> None:
    """Compute cells until standard input ends."""
    outcomes, jobs = _private_output(), queue.Queue[Job]()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    import roundelay.experiment.run_training  # noqa: F401 (it takes seconds: before the first cell is timed)

    while True:
        outcome = compute(jobs.get())
        gc.collect()  # objects of a run keep its data files open and mapped
        print(json.dumps(outcome), file=outcomes, flush=True)


if __name__ == "__main__":
    main()

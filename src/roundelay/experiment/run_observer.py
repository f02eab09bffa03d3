"""Observers of a run, in the process that called `train`.

Learners write steps and evaluations into the run's record.  A simulated run passes its events on as it writes them; for
learners in other processes a thread follows the files.  So no learner knows who watches it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundelay.runs.reader import Tail, parse_line
from roundelay.runs.record import Record

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.task import Scores

FOLLOW_SECONDS = 0.2  # between two looks at the records
COMMON = ("event", "member", "clock", "time", "minibatch", "epoch")


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of the consensus."""

    minibatch: int
    """How many minibatches of the run were trained."""
    epoch: float
    scores: Scores
    seconds: float
    """When it was, by the run's clock."""
    clock: str


class RunObserver:
    """Is told how a run proceeds; subclass it.  By default every method does nothing."""

    def started(self, about: Mapping[str, Any]) -> None:
        """Take what is about to be trained, as ``run.json`` has it."""

    def noticed(self, line: str) -> None:
        """Take a line that the user should know."""

    def began(self, minibatches: int) -> None:
        """Take the number of minibatches of the run, or of a stage of its pre-training, which begins now."""

    def stepped(self, minibatch: int, frames: int, loss: float) -> None:
        """Take one step of any learner: the minibatch's number, its frames and its loss."""

    def evaluated(self, evaluation: Evaluated) -> None:
        """Take an evaluation."""

    def ended(self) -> None:
        """Know that what `began` has ended, by an error too."""

    def stage_ended(self, about: Mapping[str, Any]) -> None:
        """Take the outcome of a stage of pre-training."""


def _tell(observer: RunObserver, event: Mapping[str, Any]) -> None:
    if event["event"] == "step":
        observer.stepped(event["minibatch"], event["frames"], event["loss"])
    elif event["event"] == "evaluate" and "minibatch" in event:
        scores = {name: value for name, value in event.items() if name not in COMMON}
        observer.evaluated(Evaluated(event["minibatch"], event["epoch"], scores, event["time"], event["clock"]))


class ObservedRecord(Record):
    """A record of this process that tells an observer what is written."""

    def __init__(self, file: Path | None, observer: RunObserver, *, clock: str, spans: int) -> None:
        super().__init__(file, clock=clock, spans=spans)
        self._observer = observer

    def write(self, event: str, member: str, time: float, **what: Any) -> None:
        """Write an event, and pass it on."""
        super().write(event, member, time, **what)
        _tell(self._observer, {"event": event, "clock": self.clock, "time": time, "member": member, **what})


@contextlib.contextmanager
def follow(folder: Path, observer: RunObserver | None) -> Iterator[None]:
    """Tell an observer what learners of other processes write into ``folder`` meanwhile; nothing if it is None."""
    if observer is None:
        yield
        return
    tails, over = {path: Tail(path, path.stat().st_size) for path in _parts(folder)}, threading.Event()

    def tell() -> None:
        for path in _parts(folder):
            for line in tails.setdefault(path, Tail(path)).new_lines():
                with contextlib.suppress(KeyError, TypeError):  # half a line, where records were cut
                    _tell(observer, parse_line(line) or {})

    def look() -> None:
        while not over.wait(FOLLOW_SECONDS):
            tell()

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        tell()


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("record-*.jsonl"))

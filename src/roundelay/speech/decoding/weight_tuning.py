"""Tune the weights of decoding on held-out utterances by a local search on a small grid; store them in the run.

The search starts at default values and moves to the best neighbour that differs in one weight, as long as it makes
fewer errors.  Weights are never tuned on the split that is reported.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.files import file_digest, inside, make_inside, read_json, write_json
from roundelay.speech.decoding.beam_search import Pruning, Weights
from roundelay.speech.decoding.decoding_data import DecodingSplit
from roundelay.speech.decoding.grammar import Grammar
from roundelay.speech.decoding.recogniser import RecognitionPlan, chunks, mean_posterior_chunk, recognise
from roundelay.speech.decoding.word_error_rate import ScoredUtterance
from roundelay.speech.worker_pool import WorkerPool

_log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]

SCALES = (0.05, 0.07, 0.1, 0.13, 0.17, 0.22, 0.3, 0.4, 0.55, 0.75, 1.0, 1.4, 2.0)
PENALTIES = tuple(x / 2 for x in range(-6, 13))
PRIORS = (0.0, 0.25, 0.5, 0.75, 1.0)
BEAM = Pruning(12.0, 2000)
"""Pruning during tuning: narrower than in the reported decoding, since only differences matter."""
_STARTS = {"ce": Weights(0.17, 1.0, 0.5), "ctc": Weights(0.55, 0.0, 0.25)}
_MOST_FRAMES = 180_000  # half an hour of dev is enough
_MOST_STEPS = 12
_FLOOR = 1e-5


@dataclass(frozen=True)
class TunedWeights:
    """The weights to decode with, and their origin."""

    weights: Weights
    on: str | None
    """The split they were tuned on; None for default or given values."""
    wer: float | None = None
    points: int = 0
    """Number of grid points that were tried."""
    priors: tuple[float, ...] | None = None
    """For CTC: how often the network predicts each output."""


def weights_key(run: Path, grammar: Grammar) -> dict[str, str]:
    """Return the digests of model and graph for which weights are valid."""
    return {"model": file_digest(run / "model.safetensors"), "graph": grammar.digest()}


def read_tuned(run: Path, grammar: Grammar) -> TunedWeights | None:
    """Read the weights that were tuned before for this model and graph; None if there are none."""
    path = _path(run, grammar)
    if not path.is_file():
        return None
    said = read_json(path)
    if said.get("key") != weights_key(run, grammar):
        return None
    priors = tuple(said["priors"]) if said.get("priors") else None
    return TunedWeights(Weights(**said["weights"]), said["on"], said["wer"], said["points"], priors)


def default_weights(objective: str) -> TunedWeights:
    """Return default weights, for use without data to tune on."""
    return TunedWeights(replace(_STARTS[objective], prior=0.0) if objective == "ctc" else _STARTS[objective], None)


def tune(
    run: Path, objective: str, grammar: Grammar, material: DecodingSplit, jobs: int = 1,
    progress: Progress = lambda *_: None, device: str = "cpu",
) -> TunedWeights:  # fmt: skip
    """Choose weights on ``material`` and keep them in the run's folder."""
    chosen = _some(material)
    with WorkerPool(jobs) as workers:
        walk = _Walk(RecognitionPlan(run, grammar, (), BEAM, device=device), material, chosen, workers, progress)
        if objective == "ctc":
            walk.take_priors()
        best = walk.run(_STARTS[objective])
    words = sum(len(material.transcripts[name]) for name in chosen)
    wer = 100.0 * walk.errors[best] / max(words, 1)
    tuned = TunedWeights(best, material.name, wer, len(walk.errors), walk.plan.priors)
    points = [asdict(weights) | {"errors": errors} for weights, errors in walk.errors.items()]
    description = asdict(tuned) | {"key": weights_key(run, grammar), "utterances": len(chosen), "tried": points}
    path = _path(run, grammar)
    make_inside(run, path.parent.name)
    write_json(path, description)
    _log.info(
        "tuned on %s: scale %g, penalty %g, prior %g; %.2f %% word errors, %d settings tried",
        material.name, best.scale, best.penalty, best.prior, wer, len(points),
    )  # fmt: skip
    return tuned


def _path(run: Path, grammar: Grammar) -> Path:
    return inside(run, "decode", f"tuned-{grammar.name}.json", what="language")


def _some(material: DecodingSplit) -> list[str]:
    """Choose utterances in a random but reproducible order, until there are enough frames."""
    names = sorted(material.utterances, key=lambda name: hashlib.sha256(name.encode()).digest())
    ends = np.cumsum([material.inputs.lengths[material.inputs.index(name)] for name in names])
    return names[: 1 + int(np.searchsorted(ends, _MOST_FRAMES))]


class _Walk:
    """Search the grid; results of all tried points are stored."""

    def __init__(
        self,
        plan: RecognitionPlan,
        material: DecodingSplit,
        utterances: Sequence[str],
        workers: WorkerPool,
        progress: Progress,
    ) -> None:
        self.plan, self._material, self._utterances = plan, material, utterances
        self._workers, self._progress = workers, progress
        self.errors: dict[Weights, int] = {}

    def take_priors(self) -> None:
        """Use how often the network predicts each output as priors."""
        found = list(
            self._workers.map(mean_posterior_chunk, self.plan, chunks(self._material.inputs, self._utterances))
        )
        frames, sums = sum(count for count, _ in found), np.sum([total for _, total in found], axis=0)
        share = np.maximum(sums / max(frames, 1), _FLOOR)
        self.plan = replace(self.plan, priors=tuple((share / share.sum()).tolist()))

    def run(self, start: Weights) -> Weights:
        """Search for weights whose neighbours all make as many errors or more."""
        best = start
        for step in range(_MOST_STEPS):
            around = [best, *neighbours(best)]
            self._try([weights for weights in around if weights not in self.errors], step)
            nearest = min(around, key=lambda weights: self.errors[weights])  # with equal errors, the present weights
            if nearest == best:
                return best
            best = nearest
        return best

    def _try(self, settings: Sequence[Weights], step: int) -> None:
        if not settings:
            return
        total = len(self._utterances)
        counts = [0] * len(settings)
        plan = replace(self.plan, weights=tuple(settings))
        found = recognise(
            plan, self._material.inputs, self._utterances, self._workers,
            lambda done, _: self._progress("tuning", step * total + done, (step + 2) * total),
        )  # fmt: skip
        for item in found:
            reference = self._material.transcripts[item.utterance]
            for i, words in enumerate([item.words, *item.others]):
                counts[i] += ScoredUtterance.from_words(item.utterance, reference, words).errors
        self.errors.update(zip(settings, counts, strict=True))


def neighbours(weights: Weights) -> Iterator[Weights]:
    """Yield weights that differ in one weight by one step of its grid."""
    grids: tuple[tuple[str, Sequence[float]], ...] = (("scale", SCALES), ("penalty", PENALTIES), ("prior", PRIORS))
    for name, grid in grids:
        value: Any = getattr(weights, name)
        position = int(np.argmin(np.abs(np.asarray(grid) - value)))
        for other in (position - 1, position + 1):
            if 0 <= other < len(grid):
                yield replace(weights, **{name: grid[other]})

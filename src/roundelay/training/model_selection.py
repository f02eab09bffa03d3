"""Which model a run leaves behind: the last, the best of all evaluations, or the mean of the last few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.task import Scores, evaluate
from roundelay.training.loop import Training

__all__ = ["KeepSettings", "ModelSelector"]


@dataclass(frozen=True)
class KeepSettings:
    """What is kept of a run, and when it has gone on for long enough; both go by evaluations on what is held out."""

    model: Literal["last", "best", "average"] = "last"
    num_models: int = 4
    """Evaluations that ``average`` takes the mean of."""
    metric: str = "loss"
    """The score to judge by; less is better."""
    patience: int | None = None
    """Stop after so many evaluations in a row that did not improve the best; by default never."""
    min_improvement: float = 0.0
    """An improvement is by more than this share of the best."""

    def __post_init__(self) -> None:
        if self.num_models < 1:
            raise SettingsError(f"num_models must be at least 1, not {self.num_models}")
        if self.patience is not None and self.patience < 1:
            raise SettingsError(f"patience must be at least 1, not {self.patience}")


class ModelSelector:
    """The consensus models worth keeping, noted as a run evaluates them.

    All learners evaluate the same consensus, so simulated learners share one of these, and on processes each has its
    own: whoever is first among the learners in the end, saves.
    """

    def __init__(self, settings: KeepSettings) -> None:
        self.settings = settings
        self._vectors: dict[int, Tensor] = {}  # by where the run stood, in minibatches
        self._scores: dict[int, Scores] = {}
        self._noted = -1

    def watch(self, training: Training) -> None:
        """Follow a training that is about to begin."""
        if self.settings.model == "last":
            return
        before = training.on_scores
        training.learner.stateful["kept"] = _Share(self, training.learner)
        training.on_scores = lambda training: self._note(training, before)

    def _note(self, training: Training, before: Callable[[Training], None] | None) -> None:
        position = training.stretches[training.stretch].end
        if position > self._noted and training.evaluated is not None:
            self._noted = position
            self.add(position, training.evaluated, training.scores)
        if before is not None:
            before(training)

    def add(self, position: int, consensus: Tensor, scores: Scores) -> None:
        """Take note of an evaluation; the vector is copied only if it is worth keeping."""
        settings = self.settings
        if settings.metric not in scores:
            raise SettingsError(f"keep.metric: no score {settings.metric!r}; there are {', '.join(sorted(scores))}")
        if settings.model == "best":
            if any(kept[settings.metric] <= scores[settings.metric] for kept in self._scores.values()):
                return
            self._vectors.clear()
            self._scores.clear()
        self._vectors[position], self._scores[position] = consensus.detach().clone(), dict(scores)
        while len(self._vectors) > (settings.num_models if settings.model == "average" else 1):
            oldest = min(self._vectors)
            del self._vectors[oldest], self._scores[oldest]

    def choose(self, training: Training, consensus: Tensor, result: dict[str, Any]) -> Tensor:
        """Return the weights to save; ``result`` is given their scores, and which evaluations they are of."""
        if not self._vectors:
            return consensus
        positions = sorted(self._vectors)
        chosen = self._vectors[positions[0]].clone()
        for position in positions[1:]:
            chosen += self._vectors[position]
        chosen /= len(positions)
        result["kept"] = {"model": self.settings.model, "minibatches": positions}
        if len(positions) == 1:
            result["scores"] = self._scores[positions[0]]
        else:
            result["scores"] = _score(training, chosen)
        return chosen

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that is kept, for a checkpoint."""
        state: dict[str, Tensor] = {"noted": torch.tensor([self._noted])}
        for position, vector in self._vectors.items():
            state[f"vector.{position}"] = vector
            for name, value in self._scores[position].items():
                state[f"score.{position}.{name}"] = torch.tensor([value], dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        self._vectors, self._scores = {}, {}
        self._noted = int(state["noted"])
        for key, tensor in state.items():
            kind, _, rest = key.partition(".")
            if kind == "vector":
                self._vectors[int(rest)] = tensor.clone()
            elif kind == "score":
                position, _, name = rest.partition(".")
                self._scores.setdefault(int(position), {})[name] = float(tensor)


class _Share:
    """What a learner's checkpoint holds of it: all on the first learner, nothing on others, who would have the same."""

    def __init__(self, kept: ModelSelector, learner: Learner) -> None:
        self._kept, self._me = kept, learner

    def attach(self, learner: Learner) -> None:
        """Belong to ``learner`` from now on."""
        self._me = learner

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept, on the first learner."""
        return self._kept.state_dict() if self._me.index == 0 and not self._me.is_server else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        if state:
            self._kept.load_state_dict(state)


def _score(training: Training, vector: Tensor) -> Scores:
    """Evaluate weights on all that is held out, by ourselves."""
    learner, task = training.learner, training.task
    sums = evaluate(task, learner.module, range(task.held_out_minibatches), lambda: learner.load(vector))
    frames = sums.pop("frames")
    return {name: value / frames for name, value in sums.items()}

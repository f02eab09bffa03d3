"""Which model a run leaves: the last, the best of all evaluations, or the mean of the last few."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.task import Scores, Task, evaluate
from roundelay.training.observer import Evaluation, Observer, Step
from roundelay.training.training_settings import KeepSettings


@dataclass
class ModelSelector:
    """An observer that keeps the consensus models worth keeping, as a run evaluates them.

    All learners evaluate the same consensus, so simulated learners share one selector, and on processes each has its
    own: the rank that is the first learner in the end saves.
    """

    settings: KeepSettings
    _vectors: dict[int, Tensor] = field(default_factory=dict)  # by position, in minibatches
    _scores: dict[int, Scores] = field(default_factory=dict)
    _last_position: int = -1

    def watch(self, learner: Learner, observers: list[Observer]) -> None:
        """Be the first observer of a learner, and a part of its checkpoints."""
        learner.stateful["kept"] = _Share(self, learner)
        observers.insert(0, self)

    def stepped(self, learner: Learner, step: Step) -> None:
        """Do nothing."""

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        """Keep the consensus if it is worth it; once, even if many learners share this selector."""
        if evaluation.position > self._last_position:
            self._last_position = evaluation.position
            self.add(evaluation.position, evaluation.consensus, evaluation.scores)

    def add(self, position: int, consensus: Tensor, scores: Scores) -> None:
        """Add an evaluation; the vector is copied only if it is worth keeping."""
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

    def choose(self, learner: Learner, task: Task, consensus: Tensor, result: dict[str, Any]) -> Tensor:
        """Return the weights to save; add their scores, and which evaluations they are of, to ``result``."""
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
            result["scores"] = _score(learner, task, chosen)
        return chosen

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that is kept, for a checkpoint."""
        state: dict[str, Tensor] = {"noted": torch.tensor([self._last_position])}
        for position, vector in self._vectors.items():
            state[f"vector.{position}"] = vector
            for name, value in self._scores[position].items():
                state[f"score.{position}.{name}"] = torch.tensor([value], dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._vectors, self._scores = {}, {}
        self._last_position = int(state["noted"])
        for key, tensor in state.items():
            kind, _, rest = key.partition(".")
            if kind == "vector":
                self._vectors[int(rest)] = tensor.clone()
            elif kind == "score":
                position, _, name = rest.partition(".")
                self._scores.setdefault(int(position), {})[name] = float(tensor)


class _Share:
    """What a learner's checkpoint has of the selector: all on the first learner, nothing on others, which are equal."""

    def __init__(self, selector: ModelSelector, learner: Learner) -> None:
        self._selector, self._learner = selector, learner

    def attach(self, learner: Learner) -> None:
        """Become part of ``learner``."""
        self._learner = learner

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept, on the first learner."""
        return self._selector.state_dict() if self._learner.index == 0 and not self._learner.is_server else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            self._selector.load_state_dict(state)


def _score(learner: Learner, task: Task, vector: Tensor) -> Scores:
    """Evaluate weights on all held-out minibatches, on this rank alone."""
    sums = evaluate(task, learner.module, range(task.held_out_minibatches), lambda: learner.load(vector))
    frames = sums.pop("frames")
    return {name: value / frames for name, value in sums.items()}

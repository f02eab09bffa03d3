"""A user's own model as a task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from own_model import HELD_OUT, LOADER, LOSS, error, make_model
from roundelay.errors import SettingsError
from roundelay.tasks.model_task import ModelTask

MODEL = make_model()


def test_both_kinds_of_loss_give_the_same() -> None:
    def whole(model: nn.Module, batch: Any) -> torch.Tensor:
        return LOSS(model(batch[0]), batch[1])

    module = make_model().eval()
    one, other = (ModelTask(make_model, LOADER, loss) for loss in (LOSS, whole))
    assert torch.equal(one.loss(module, one.load(0, 1)), other.loss(module, other.load(0, 1)))


def test_scores_are_sums_over_frames() -> None:
    task = ModelTask(make_model, LOADER, LOSS, held_out=HELD_OUT, evaluate=error)
    assert task.score_names == ("loss", "error")
    assert task.score(task.make_module().eval(), 0)["frames"] == 32


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (lambda: MODEL, LOSS, "the same model twice"),
        (lambda: 3, LOSS, "must return a torch.nn.Module"),
        (make_model, nn.CrossEntropyLoss(reduction="none"), "one number"),
        (make_model, lambda outputs, targets: 1.0, "must return a tensor"),
        (make_model, lambda outputs, targets: outputs.detach().mean(), "no gradient"),
    ],
)
def test_mistakes_are_told_in_a_line(model: Any, loss: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelTask(model, LOADER, loss)

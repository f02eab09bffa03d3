"""The built-in task: its data depend on seeds alone."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.tasks.tiny import Tiny


def test_an_epoch_has_every_frame_once_in_another_order() -> None:
    task = Tiny(frames_per_epoch=70, batch=32)
    assert task.minibatches_per_epoch == 3
    assert [task.frames(0, i) for i in range(3)] == [32, 32, 6]
    epochs = [torch.cat([task.load(epoch, i)[0] for i in range(3)]) for epoch in (0, 1)]
    assert not torch.equal(*epochs)
    assert torch.equal(*(epoch[:, 0].sort().values for epoch in epochs))


def test_data_and_models_are_equal_for_equal_seeds() -> None:
    one, same, other = Tiny(), Tiny(), Tiny(data_seed=1, model_seed=1)
    assert torch.equal(one.load(3, 5)[0], same.load(3, 5)[0])
    assert not torch.equal(one.load(3, 5)[0], other.load(3, 5)[0])
    weights = [next(task.make_module().parameters()) for task in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("model", ["dnn", "lstm"])
def test_held_out_scores_are_sums_over_all_frames(model: Literal["dnn", "lstm"]) -> None:
    task = Tiny(model=model, batch_norm=True, dropout=0.1)
    module = task.make_module().eval()
    with torch.inference_mode():
        scores = [task.score(module, i) for i in range(task.held_out_minibatches)]
    assert sum(score["frames"] for score in scores) == 1024
    assert all(0 <= score["error"] <= score["frames"] and score["loss"] > 0 for score in scores)
    assert task.loss(module, task.load(0, 0)).shape == ()


def test_settings_below_one_are_errors() -> None:
    with pytest.raises(SettingsError, match="batch must be at least 1, not 0"):
        Tiny(batch=0)

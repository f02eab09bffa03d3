"""What every task can do: a gradient by autograd, sums over held-out minibatches, and seeds of minibatches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from roundelay.learner import Learner
from roundelay.task import Scores, Task, evaluate, seed_minibatch


class Squares(Task):
    """The mean square of the weights times a number; held-out minibatch k has k + 1 frames."""

    minibatches_per_epoch, nominal_frames, held_out_minibatches = 4, 8, 3

    def make_module(self) -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Dropout(0.5))
        nn.init.constant_(module[0].weight, 2.0)  # type: ignore[arg-type]  # a tensor
        return module

    def load(self, epoch: int, index: int) -> float:
        return 1.0 + index

    def loss(self, module: nn.Module, batch: float) -> Tensor:
        return batch * torch.cat([p.reshape(-1) for p in module.parameters()]).square().mean()

    def score(self, module: nn.Module, index: int) -> Scores:
        assert not module.training
        assert not torch.is_grad_enabled()
        return {"frames": index + 1.0, "loss": 2.0 * (index + 1)}


def test_the_gradient_is_that_of_the_loss() -> None:
    task = Squares()
    learner = Learner(task.make_module())
    learner.take_snapshot()
    assert task.gradient(learner, task.load(0, 2)) == pytest.approx(12.0)
    learner.collect_grad()
    assert learner.grad[:2].tolist() == pytest.approx([6.0, 6.0])  # 3 * 2 w / 2


def test_frames_and_descriptions_have_defaults() -> None:
    assert Squares().frames(0, 3) == 8
    assert Squares().describe(0, 3) == ""


@pytest.mark.parametrize("training", [True, False])
def test_scores_are_added_up_with_the_loaded_weights(*, training: bool) -> None:
    task, loaded = Squares(), []
    module = task.make_module().train(training)
    total = evaluate(task, module, [0, 2], lambda: loaded.append(True))
    assert total == {"frames": 4.0, "loss": 8.0}
    assert loaded == [True]
    assert module.training == training, "as before"


def test_a_minibatch_is_seeded_by_its_epoch_and_index() -> None:
    def draw(*where: int) -> list[float]:
        seed_minibatch(*where)
        return torch.rand(3).tolist()

    first = draw(1, 0, 5)
    assert draw(1, 0, 5) == first
    assert first not in (draw(2, 0, 5), draw(1, 1, 5), draw(1, 0, 6))

"""Training an acoustic model on prepared tones: what minibatches hold, what is lost and scored, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from roundelay.errors import DataError, NumericalError, SettingsError
from roundelay.experiment.run_training import train
from roundelay.experiment.settings import Experiment
from roundelay.models import MODELS
from roundelay.speech.decoding.network_scorer import Scorer
from roundelay.speech.preparation.pipeline import open_prepared
from roundelay.task import seed_minibatch
from roundelay.tasks.acoustic import Acoustic
from roundelay.tasks.batch_reader import with_context


def tiny(toned: str, name: str = "dnn", **settings: Any) -> Acoustic:
    model = {"name": name, "preset": "tiny"} | settings.pop("model", {})
    return Acoustic(**{"data": toned, "model": model, "batch": 64, "chunk": 20} | settings)


def descend(task: Acoustic, epochs: int, lr: float = 0.01) -> tuple[nn.Module, list[float]]:
    """Train by Adam; return the model and the held-out losses and errors, the last ones behind."""
    module = task.make_module()
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    for epoch in range(epochs):
        for index in range(task.minibatches_per_epoch):
            seed_minibatch(0, epoch, index)
            optimizer.zero_grad()
            task.loss(module, task.load(epoch, index)).backward()
            optimizer.step()
    module.eval()
    return module, score(task, module)


def score(task: Acoustic, module: nn.Module) -> list[float]:
    with torch.no_grad():
        parts = [task.score(module, index) for index in range(task.held_out_minibatches)]
    frames = sum(part["frames"] for part in parts)
    return [sum(part[name] for part in parts) / frames for name in ("loss", "error")]


def gradient(task: Acoustic, module: nn.Module, index: int, seed: int = 3) -> torch.Tensor:
    module.zero_grad()
    seed_minibatch(seed, 0, index)
    task.loss(module, task.load(0, index)).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def test_tones_are_learnt_by_frames_and_by_chunks(toned: str) -> None:
    for name in ("dnn", "lstm"):
        task = tiny(toned, name)
        before = score(task, task.make_module().eval())
        _, after = descend(task, 6)
        assert before[1] > 0.7
        assert after[1] < 0.35, name
        assert after[0] < before[0] / 2


def test_tones_are_learnt_by_ctc(toned: str) -> None:
    task = tiny(toned, "lstm", objective="ctc", batch=128, model={"cells": 24})
    _, (_, error) = descend(task, 25, lr=0.02)
    assert error < 0.3, "a third of the phones is heard wrong"


@pytest.mark.parametrize("objective", ["ce", "ctc"])
@pytest.mark.parametrize("name", MODELS)
def test_a_minibatch_is_its_epoch_and_index(name: str, objective: str, toned: str) -> None:
    """Masks, dropout and all: the same gradient to the bit wherever it is taken, and another for another."""
    augment = {"frequency_masks": 2, "time_masks": 1}
    settings: dict[str, Any] = {"objective": objective, "kinds": ["plain", "adapted"], "ivectors": True}
    task = Experiment(
        {"name": "acoustic", "data": toned, "model": {"name": name, "preset": "tiny", "dropout": 0.3}}
        | settings | {"augment": augment, "batch": 64}
    ).make_task()  # fmt: skip
    assert isinstance(task, Acoustic)
    first, again = task.make_module(), task.make_module()
    assert torch.equal(gradient(task, first, 0), gradient(task, again, 0))
    assert not torch.equal(gradient(task, first, 0), gradient(task, again, 1))
    assert not torch.equal(gradient(task, first, 0), gradient(task, again, 0, seed=4))


@pytest.mark.parametrize("objective", ["ce", "ctc"])
@pytest.mark.parametrize("name", ["dnn", "lstm"])
def test_every_frame_once_an_epoch(name: str, objective: str, toned: str) -> None:
    task = tiny(toned, name, objective=objective)
    data = open_prepared(toned)
    frames = [task.frames(2, index) for index in range(task.minibatches_per_epoch)]
    assert frames == [task.load(2, index).frames for index in range(task.minibatches_per_epoch)]
    assert sum(frames) == data.features("train").num_rows
    assert abs(task.nominal_frames * task.minibatches_per_epoch / sum(frames) - 1) < 0.1
    named = {
        utterance for index in range(task.minibatches_per_epoch) for utterance in task._reading.utterances(2, index)
    }
    assert named == set(data.features("train").ids)


def test_several_splits_take_turns(toned: str) -> None:
    task = tiny(toned, train=["train", "dev"])
    data = open_prepared(toned)
    rows = [data.features(split).num_rows for split in ("train", "dev")]
    assert sum(task.frames(0, index) for index in range(task.minibatches_per_epoch)) == sum(rows)
    of_dev = [
        index for index in range(task.minibatches_per_epoch) if task._reading.utterances(0, index)[0].startswith("dev")
    ]
    assert len(of_dev) == math.ceil(rows[1] / 64)
    assert max(np.diff(of_dev)) <= 2 * task.minibatches_per_epoch / len(of_dev)  # spread over the epoch


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_decoding(name: str, toned: str) -> None:
    """What is evaluated is what the decoder will be given."""
    task = tiny(toned, name)
    data = open_prepared(toned)
    module = task.make_module().eval()
    loss = errors = frames = 0.0
    for utterance, features in data.features("dev").items():
        scores, targets = torch.from_numpy(Scorer(module)(features)), torch.tensor(data.alignments("dev")[utterance])
        loss += float(functional.nll_loss(scores, targets.long(), reduction="sum"))
        errors += float((scores.argmax(1) != targets).sum())
        frames += len(targets)
    assert score(task, module) == pytest.approx([loss / frames, errors / frames], rel=1e-5)


def test_smoothing_is_for_training_only(toned: str) -> None:
    plain, smooth = tiny(toned), tiny(toned, label_smoothing=0.2)
    module = plain.make_module().eval()
    assert score(plain, module) == score(smooth, module)
    batch = plain.load(0, 0)
    logits = module(batch.inputs.view(64, -1, plain._num_inputs))[:, 0]
    uniform = -logits.log_softmax(1).mean(1).mean()
    expected = 0.8 * plain.loss(module, batch) + 0.2 * uniform
    assert float(smooth.loss(module, batch).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_context_repeats_the_ends() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])[:, :, None]
    padded = with_context(x, torch.tensor([3, 2]), 2, 1)[..., 0]
    assert padded.tolist() == [[1, 1, 1, 2, 3, 3], [4, 4, 4, 5, 5, 5]]


def test_the_seed_is_the_experiments(toned: str) -> None:
    def first(seed: int, own: dict[str, int] | None = None) -> torch.Tensor:
        table = {"name": "acoustic", "data": toned, "model": {"name": "dnn", "preset": "tiny"}} | (own or {})
        return next(Experiment(table, seed=seed).make_task().make_module().parameters())

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))
    assert torch.equal(first(5, {"seed": 7}), first(6, {"seed": 7}))


def test_a_bad_minibatch_names_its_utterances(toned: str) -> None:
    table = {"name": "acoustic", "data": toned, "batch": 64, "model": {"name": "dnn", "preset": "tiny"}}
    experiment = Experiment(table, optimizer={"name": "SGD", "lr": 1e30})
    with pytest.raises(NumericalError, match=r"learner 0: .*minibatch \d+ of epoch 0 \(utterances train\d-u\d\d, "):
        train(experiment, on="simulator")
    assert tiny(toned).describe(0, 0).startswith("utterances train0-u0")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": ""}, "data is missing; give the folder of prepared data with --data"),
        ({"kinds": ["plan"]}, "unknown kind of features 'plan'; did you mean 'plain'"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1"),
        ({"name": "lstm", "model": {"stride": 3}}, "a stride of 3 is for objective = 'ctc'"),
        ({"model": {"preset": "huge"}}, "preset: unknown 'huge'"),
    ],
)
def test_refused(settings: dict[str, Any], said: str, toned: str) -> None:
    with pytest.raises(SettingsError, match=said):
        tiny(toned, **settings)


def test_what_the_data_lack_is_refused(toned: str, tmp_path: Any) -> None:
    with pytest.raises(DataError, match="no prepared data"):
        tiny(str(tmp_path))
    with pytest.raises(DataError, match="unknown split 'test'"):
        tiny(toned, held_out_split="test")

"""`roundelay.join` in loops of the user's own."""

from __future__ import annotations

import itertools
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import roundelay
from roundelay.errors import SettingsError
from roundelay.joining import Joined
from roundelay.runtimes.local import LocalRuntime

BATCHES = [(torch.full((4, 3), float(k)) / 10, torch.ones(4, 1)) for k in range(12)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def joined(module: nn.Module, strategy: roundelay.Strategy | None = None, **more: Any) -> Joined:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    return roundelay.join(module, optimizer, strategy or roundelay.Synchronous(), runtime=LocalRuntime(), **more)


def by_hand(module: nn.Module, epochs: int = 2) -> Tensor:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for x, y in BATCHES * epochs:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("strategy", [roundelay.Synchronous(), roundelay.Averaging(period=4), roundelay.ADPSGD()])
def test_alone_it_is_the_plain_loop(strategy: roundelay.Strategy) -> None:
    module = model()
    with joined(module, strategy) as learner:
        for _ in range(2):
            for x, y in learner.share(BATCHES):
                with learner.minibatch():
                    nn.functional.mse_loss(module(x), y).backward()
        with learner.consensus():
            assert torch.allclose(weights(module), by_hand(model()), atol=1e-6)


def test_what_is_left_of_the_old_loop_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    module = model()
    learner = joined(module)
    optimizer = learner._me.optimizer
    assert optimizer is not None
    with caplog.at_level(logging.WARNING):
        for x, y in itertools.chain.from_iterable(learner.share(BATCHES) for _ in range(2)):
            with learner.minibatch():
                optimizer.zero_grad()
                nn.functional.mse_loss(module(x), y).backward()
                optimizer.step()
            optimizer.step()
            optimizer.zero_grad()
    with learner.consensus():
        assert torch.equal(weights(module), by_hand(model()))
    said = [record.message for record in caplog.records]
    assert said == ["optimizer.step() does nothing here: leaving 'with learner.minibatch():' takes the step"]


def test_gradients_accumulate_over_backward_passes() -> None:
    module, other = model(), model()
    learner = joined(module)
    for x, y in learner.share(BATCHES):
        with learner.minibatch():
            for half_x, half_y in zip(x.chunk(2), y.chunk(2), strict=True):
                (0.5 * nn.functional.mse_loss(module(half_x), half_y)).backward()
    with learner.consensus():
        assert torch.allclose(weights(module), by_hand(other, epochs=1), atol=1e-6)


def test_dataloaders_are_shared_by_number() -> None:
    data = TensorDataset(torch.arange(10.0))
    learner = joined(model())
    seen: list[float] = []
    for (values,) in learner.share(DataLoader(data, batch_size=3, shuffle=True)):
        seen += values.tolist()
        with learner.minibatch():
            pass
    assert sorted(seen) == list(range(10))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(5.0)


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=2), iter(range(3)), (k for k in range(3))])
def test_a_learners_own_minibatches_are_taken_as_they_come(loader: Any) -> None:
    learner, count = joined(model()), 0
    for _ in learner.share(loader):
        count += 1
        with learner.minibatch():
            pass
    assert count == 3


def test_misuse_is_named() -> None:
    learner = joined(model())
    with pytest.raises(SettingsError, match="belongs inside"), learner.minibatch():
        pass
    with pytest.raises(SettingsError, match="handed out and not trained"):
        for _ in learner.share(BATCHES):
            pass
    with pytest.raises(SettingsError, match="1 ranks cannot train by ASGD, which takes 1 for serving"):
        joined(model(), roundelay.ASGD())


def test_a_loop_may_be_left_early() -> None:
    module = model()
    learner = joined(module)
    for _ in range(2):
        for k, (x, y) in enumerate(learner.share(BATCHES)):
            if k == 3:
                break
            with learner.minibatch():
                nn.functional.mse_loss(module(x), y).backward()
    learner.close()


def test_saving(tmp_path: Path) -> None:
    module = model()
    learner = joined(module)
    learner.save(tmp_path / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], module.state_dict()["weight"])
    assert json.loads((tmp_path / "model.json").read_text())["learners"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_the_example_under_torchrun(size: int, root: Path, tmp_path: Path) -> None:
    words = ["--nproc-per-node", str(size), "--master-port", "0", "--standalone", str(root / "examples" / "join.py")]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        capture_output=True, text=True, timeout=110, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(rf"{size} learners: loss (0\.\d+)\n", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 1.2  # it begins at 3.4
    assert set(load_file(tmp_path / "join-model.safetensors")) == {"0.weight", "0.bias", "2.weight", "2.bias"}

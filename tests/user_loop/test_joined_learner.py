"""`roundelay.join` in loops of the user's own."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import re
import shutil
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
from command_line import ROUNDELAY
from roundelay.errors import CheckpointError, NumericalError, SettingsError
from roundelay.runtimes.mpi import mpi_launcher
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.user_loop.joined_learner import JoinedLearner

BATCHES = [(torch.full((4, 3), float(k)) / 10, torch.ones(4, 1)) for k in range(12)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def joined(module: nn.Module, strategy: roundelay.Strategy | None = None, **more: Any) -> JoinedLearner:
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
    optimizer = learner._learner.optimizer
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
    assert not caplog.records


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
    with pytest.raises(SettingsError, match=r"12 minibatches were handed out and optimizer.step\(\) was never called"):
        for _ in learner.share(BATCHES):
            pass


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


# -- checkpoints ------------------------------------------------------------------------------------------------------

LOOP = """
import os, signal, sys
import torch
from torch import nn
import roundelay

folder, strategy, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
chosen = roundelay.BMUF(block=4) if strategy == "bmuf" else roundelay.ADPSGD()
with roundelay.join(model, optimizer, chosen, seed=1, checkpoints=folder + "/checkpoints", record=folder) as learner:
    for epoch in learner.epochs(6):
        for k, (x, y) in enumerate(learner.share(torch.utils.data.DataLoader(data, batch_size=5, shuffle=True))):
            if epoch == stop and k == 2 and learner.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            with learner.minibatch():
                nn.functional.mse_loss(model(x), y).backward()
        if learner.rank == 0:
            print("epoch", epoch, flush=True)
    learner.save(folder + "/model.safetensors")
"""


def run_loop(folder: Path, strategy: str, stop: int, learners: int = 2) -> list[int]:
    folder.mkdir(exist_ok=True)
    (folder / "loop.py").write_text(LOOP)
    words = ["--standalone", "--nproc-per-node", str(learners), "--max-restarts", "1"]
    words += [str(folder / "loop.py"), str(folder), strategy, str(stop)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return [int(line.removeprefix("epoch ")) for line in done.stdout.splitlines()]


def recorded(folder: Path) -> list[int]:
    """Return the minibatches in a folder's record."""
    lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return sorted(line["minibatch"] for line in lines if line["event"] == "step")


@pytest.mark.slow
def test_a_loop_of_ones_own_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    assert run_loop(tmp_path / "through", "bmuf", -1) == list(range(6))
    trained = run_loop(tmp_path / "killed", "bmuf", 3)
    assert trained in ([0, 1, 2, 3, 4, 5], [0, 1, 2, 2, 3, 4, 5]), "epoch 2 may not have been on disk"
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("through", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert recorded(tmp_path / "killed") == recorded(tmp_path / "through") == list(range(72)), "what was undone is not"
    assert run_loop(tmp_path / "killed", "bmuf", -1) == [], "nothing is left to do"
    assert recorded(tmp_path / "killed") == list(range(72))


@pytest.mark.slow
def test_a_loop_of_ones_own_goes_on_with_more_learners(tmp_path: Path) -> None:
    assert run_loop(tmp_path, "adpsgd", -1) == list(range(6))
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoints" / "0000000072")
    assert run_loop(tmp_path, "adpsgd", -1, learners=3) == [5]


@pytest.mark.parametrize("strategy", [roundelay.Synchronous(), roundelay.BMUF(block=4), roundelay.ADPSGD()])
def test_alone_it_goes_on_to_the_bit(strategy: roundelay.Strategy, tmp_path: Path) -> None:
    def train(where: Path, total: int) -> Tensor:
        module = model()
        with joined(module, strategy, checkpoints=where) as learner:
            for _ in learner.epochs(total):
                for x, y in learner.share(BATCHES):
                    with learner.minibatch():
                        nn.functional.mse_loss(module(x), y).backward()
            with learner.consensus() as vector:
                return vector.clone()

    through = train(tmp_path / "through", 5)
    train(tmp_path / "parts", 2)
    assert torch.equal(train(tmp_path / "parts", 5), through)
    assert len(list((tmp_path / "parts" / "checkpoints").iterdir())) == 3, "the last few stay"


def test_checkpoints_of_another_model_or_strategy_are_refused(tmp_path: Path) -> None:
    with joined(model(), checkpoints=tmp_path) as learner:
        for _ in learner.epochs(1):
            for _ in learner.share(BATCHES):
                with learner.minibatch():
                    pass
    with pytest.raises(CheckpointError, match=r"of another model: weight \[1, 3\], here weight \[1, 9\]; give"):
        joined(nn.Linear(9, 1), checkpoints=tmp_path)
    with pytest.raises(CheckpointError, match=r"made by Synchronous, not BMUF; give another folder"):
        joined(model(), roundelay.BMUF(), checkpoints=tmp_path)


def test_own_minibatches_are_numbered_on_from_epoch_to_epoch() -> None:
    numbers = []
    with joined(model()) as learner:
        for _ in learner.epochs(2):
            for _ in learner.share(iter(BATCHES[:3])):
                with learner.minibatch():
                    numbers.append(learner._learner.minibatch)
    assert numbers == [0, 1, 2, 3, 4, 5], "schedules go by them, and seeds"


def test_epochs_are_counted_without_checkpoints() -> None:
    with joined(model()) as learner:
        assert list(learner.epochs(3)) == [0, 1, 2]


# -- records ----------------------------------------------------------------------------------------------------------

AGAIN = """
import sys
import torch
from torch import nn
import roundelay

for folder, strategy in ("one", roundelay.Synchronous()), (None, roundelay.BMUF(block=4)), ("two", roundelay.ASGD()):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with roundelay.join(model, optimizer, strategy, record=folder and f"{sys.argv[1]}/{folder}") as learner:
        for _ in range(2):
            for x in learner.share([torch.randn(4, 3) for _ in range(25)]):
                with learner.minibatch() as minibatch:
                    minibatch.loss = model(x).square().mean()
                    minibatch.loss.backward()
"""


def check_records(folder: Path, on: str) -> None:
    for name, learners in ("one", 2), ("two", 2):
        assert recorded(folder / name) == list(range(50))
        about = json.loads((folder / name / "run.json").read_text())
        where = on if name == "one" else "processes"  # servers in learners' processes meet in a store, also under MPI
        assert (about["on"], about["learners"], about["parameters"]) == (where, learners, 4)
    calibrated = subprocess.run(
        [*ROUNDELAY, "calibrate", str(folder / "one"), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(calibrated.stdout)["cluster"]["model_bytes"] == 16
    watched = subprocess.run(
        [*ROUNDELAY, "watch", str(folder / "one"), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    seen = json.loads(watched.stdout)
    assert (seen["minibatches"], seen["finished"]) == (50, True)


@pytest.mark.slow
def test_loops_after_one_another_are_recorded_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    words = ["--standalone", "--nproc-per-node", "2", str(tmp_path / "again.py"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    check_records(tmp_path, "processes")


@pytest.mark.slow
def test_loops_after_one_another_are_recorded_under_mpi(tmp_path: Path) -> None:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    command = [*mpi_launcher.find_mpiexec(), "-n", "2", sys.executable, "-c", AGAIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    check_records(tmp_path, "mpi")


def train_recorded(folder: Path, **more: Any) -> JoinedLearner:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with roundelay.join(module, optimizer, roundelay.Synchronous(), record=folder, **more) as learner:
        for _ in learner.epochs(2):
            for x, y in learner.share(BATCHES):
                with learner.minibatch(frames=3) as minibatch:
                    minibatch.loss = nn.functional.mse_loss(module(x), y)
                    minibatch.loss.backward()
                    minibatch.frames += 1
    return learner


def test_alone_it_is_recorded(tmp_path: Path) -> None:
    train_recorded(tmp_path / "run")
    assert recorded(tmp_path / "run") == list(range(24))
    steps = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    steps = [line for line in steps if line["event"] == "step"]
    assert {line["frames"] for line in steps} == {4}
    assert all(line["loss"] > 0 for line in steps)


def test_a_record_is_not_mixed_with_another(tmp_path: Path) -> None:
    train_recorded(tmp_path)
    with pytest.raises(SettingsError, match="already has a record; give record= a new folder"):
        train_recorded(tmp_path)
    with pytest.raises(SettingsError, match="the given runtime has its own record"):
        train_recorded(tmp_path / "other", runtime=LocalRuntime())


def test_a_given_runtime_is_one_ranks_alone() -> None:
    with pytest.raises(SettingsError, match="ASGD has servers, which live in learners' processes; leave runtime out"):
        joined(model(), roundelay.ASGD())


def test_a_checkpoint_of_which_nothing_is_left_begins_the_record_anew(tmp_path: Path) -> None:
    train_recorded(tmp_path, checkpoints=tmp_path)
    for part in (tmp_path / "checkpoints").glob("*/*.json"):
        part.unlink()
    train_recorded(tmp_path, checkpoints=tmp_path)
    assert recorded(tmp_path) == list(range(24))


# -- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "what"), [(True, "the loss is nan"), (False, "the gradient is not finite")])
def test_what_is_not_finite_stops_the_run(told: bool, what: str) -> None:
    module = model()

    def train(learner: JoinedLearner) -> None:
        for k, (x, y) in enumerate(learner.share(BATCHES)):
            with learner.minibatch() as minibatch:
                loss = nn.functional.mse_loss(module(x), y) * (float("nan") if k == 3 else 1.0)
                loss.backward()
                minibatch.loss = loss if told else None

    with pytest.raises(NumericalError, match=f"learner 0: {what} at minibatch 3"):
        train(joined(module))
    assert bool(torch.isfinite(weights(module)).all()), "that step was not taken"

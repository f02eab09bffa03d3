"""Loops as real programs have them; run by torchrun, each returns what a test looks at, from every learner."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import roundelay

F = nn.functional
torch.manual_seed(0)
X, Y = torch.randn(82, 4), torch.randn(82, 1)
DATA = TensorDataset(X, Y)
BATCHES = [(X[k : k + 2], Y[k : k + 2]) for k in range(0, 82, 2)]
LOOPS: dict[str, Callable[[], Any]] = {}


def loop(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a loop to those that are run."""
    LOOPS[function.__name__] = function
    return function


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def flat(model: nn.Module) -> list[float]:
    values: list[float] = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    return values


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> int:
    """Train in the plainest of loops; return how many minibatches there were."""
    count = 0
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        count += 1
    return count


@loop
def schedulers_made_before_and_after() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with roundelay.join(model, optimizer, roundelay.BMUF(block=4)) as learner:
        second = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        shared = learner.share(BATCHES)
        for _ in range(2):
            train(model, optimizer, shared)
            first.step()
            second.step()
    return optimizer.param_groups[0]["lr"]


@loop
def one_cycle_by_batch() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.Averaging(period=4)) as learner:
        shared = learner.share(BATCHES)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(shared) + 1)
        for x, y in shared:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            cycle.step()
    return optimizer.param_groups[0]["lr"]


@loop
def follow_without_a_common_pace() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.ADPSGD()) as learner:
        linear = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: max(0.0, 1 - k / len(BATCHES)))
        learner.follow(linear)
        for x, y in learner.share(BATCHES):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            linear.step()
    return optimizer.param_groups[0]["lr"]


@loop
def zero_grad_at_the_end() -> Any:
    model, before = net(), flat(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.BMUF(block=4)) as learner:
        for x, y in learner.share(BATCHES):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return flat(model) != before


@loop
def closure() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called, losses = 0, []
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        for x, y in learner.share(BATCHES, equal=True):

            def evaluate(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                nonlocal called
                called += 1
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            losses.append(optimizer.step(evaluate))
    return [called == len(losses), all(isinstance(loss, torch.Tensor) for loss in losses), flat(model) != flat(net())]


@loop
def clipping_sees_the_mean_gradient() -> Any:
    """As under DistributedDataParallel: one process that trains the minibatches of all at once takes the same steps."""
    model, plain = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        size = learner.num_learners
        for x, y in learner.share(BATCHES[:40]):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    by_hand = torch.optim.SGD(plain.parameters(), lr=0.1)
    for k in range(0, 40, size):
        by_hand.zero_grad()
        for x, y in BATCHES[k : k + size]:
            (F.mse_loss(plain(x), y) / size).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        by_hand.step()
    return max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))


@loop
def accumulation() -> Any:
    model, plain = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        size = learner.num_learners
        for k, (x, y) in enumerate(learner.share(BATCHES[:40])):
            with learner.no_sync() if k % 2 == 0 else torch.enable_grad():
                (F.mse_loss(model(x), y) / 2).backward()
            if k % 2:
                optimizer.step()
                optimizer.zero_grad()
    by_hand = torch.optim.SGD(plain.parameters(), lr=0.1)
    for k in range(0, 40, 2 * size):
        by_hand.zero_grad()
        for x, y in BATCHES[k : k + 2 * size]:
            (F.mse_loss(plain(x), y) / (2 * size)).backward()
        by_hand.step()
    return max(abs(a - b) for a, b in zip(flat(model), flat(plain), strict=True))


@loop
def clamped_weights() -> Any:
    """A neighbour may take the weights between a step and the edit after it: with ADPSGD it is not exact."""
    largest = []
    for strategy in roundelay.Averaging(period=3), roundelay.Synchronous(), roundelay.ADPSGD():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if isinstance(strategy, roundelay.ADPSGD) else 0.5)
        with roundelay.join(model, optimizer, strategy) as learner:
            for x, y in learner.share(BATCHES):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.clamp_(-0.01, 0.01)
        largest.append(max(map(abs, flat(model))))
    return largest


@loop
def a_checkpoint_loaded_after_join() -> Any:
    ends = []
    for strategy in roundelay.BMUF(block=4), roundelay.ADPSGD(), roundelay.EASGD(period=2), roundelay.ASGD():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with roundelay.join(model, optimizer, strategy) as learner:
            train(model, optimizer, learner.share(BATCHES[:6]))
            model.load_state_dict({name: torch.full_like(x, 7.0) for name, x in model.state_dict().items()})
            train(model, optimizer, learner.share(BATCHES[:6]))
        ends.append([min(flat(model)), max(flat(model))])
    return ends


@loop
def a_layer_unfrozen_after_join() -> Any:
    model = net()
    layer: Any = model[0]
    layer.requires_grad_(False)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.Averaging(period=4)) as learner:
        train(model, optimizer, learner.share(BATCHES))
        frozen = torch.equal(layer.weight, before)
        layer.requires_grad_(True)
        train(model, optimizer, learner.share(BATCHES))
    return [frozen, not torch.equal(layer.weight, before), flat(model)]


class Counter(nn.Module):
    """Assigns its buffer anew in each forward pass, and moves its weights as recurrent layers do."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.lstm, self.out = nn.LSTM(4, 3), nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        for name, parameter in self.lstm.named_parameters():
            if name == "weight_hh_l0":
                parameter.data = parameter.data.clone()
        result: torch.Tensor = self.out(self.lstm(x)[0])
        return result


@loop
def tensors_assigned_in_the_forward_pass() -> Any:
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.Averaging(period=1)) as learner:
        train(model, optimizer, learner.share(BATCHES[:40]))
    return [float(model.seen), flat(model)]


@loop
def grad_scaler() -> Any:
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=4):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        with roundelay.join(model, optimizer, strategy) as learner:
            for k, (x, y) in enumerate(learner.share(BATCHES[:40])):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y) * (float("inf") if k == 3 and learner.rank == 0 else 1.0)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                scaler.step(optimizer)
                scaler.update()
        ends.append([all(map(math.isfinite, flat(model))), flat(model) != flat(net())])
    return ends


class Pids(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index], os.getpid(), index


@loop
def workers_of_the_loader() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.ADPSGD()) as learner:
        seen, processes = [], set()
        for x, y, pids, indices in learner.share(DataLoader(Pids(), batch_size=2, shuffle=True, num_workers=2)):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            seen += indices.tolist()
            processes |= set(pids.tolist())
    return [seen, os.getpid() in processes]


@loop
def a_sampler_of_batches() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = [[k, k + 1] for k in range(0, 40, 2)]
    with roundelay.join(model, optimizer, roundelay.BMUF(block=4)) as learner:
        batches = DataLoader(DATA, batch_size=None, sampler=order)
        return train(model, optimizer, learner.share(batches))


class Sharding:
    """A sampler that divides the samples, which is not torch's own."""

    def __iter__(self) -> Iterator[int]:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return iter(range(rank, 80, size))

    def __len__(self) -> int:
        return 80 // int(os.environ.get("WORLD_SIZE", "1"))


@loop
def a_sampler_that_shards() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(TensorDataset(X, Y, torch.arange(82)), batch_size=2, sampler=Sharding())
    seen = []
    with roundelay.join(model, optimizer, roundelay.BMUF(block=4)) as learner:
        for x, y, indices in learner.share(batches):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            seen += indices.tolist()
    return seen


@loop
def evaluation_in_mid_epoch() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = 0
    with roundelay.join(model, optimizer, roundelay.BMUF(block=4)) as learner:
        for x, y in learner.share(BATCHES[:40]):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            count += 1
            if count % 5 == 0:
                with learner.consensus(), torch.no_grad():
                    model(X)
    return count


@loop
def a_learner_that_breaks() -> Any:
    counts = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=4), roundelay.ADPSGD(), roundelay.EASGD(period=3):
        model, count = net(), 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with roundelay.join(model, optimizer, strategy) as learner:
            for x, y in learner.share(BATCHES):
                if learner.rank == 0 and count == 3:
                    break
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                count += 1
        counts.append([count, flat(model)])
    return counts


@loop
def two_models() -> Any:
    """A GAN: two models with an optimizer each."""
    ends = []
    for strategy in roundelay.ADPSGD(), roundelay.BMUF(block=4):
        one, two = net(), nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
        first, second = torch.optim.Adam(one.parameters(), lr=0.01), torch.optim.Adam(two.parameters(), lr=0.01)
        with roundelay.join(one, first, strategy) as learner, roundelay.join(two, second, strategy):
            for x, y in learner.share(BATCHES[:20]):
                second.zero_grad()
                (two(y) - 1).square().mean().add(two(one(x).detach()).square().mean()).backward()
                second.step()
                first.zero_grad()
                (two(one(x)) - 1).square().mean().backward()
                first.step()
        ends.append([flat(one), flat(two)])
    return ends


@loop
def without_share() -> Any:
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=4), roundelay.ADPSGD(), roundelay.ASGD():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with roundelay.join(model, optimizer, strategy) as learner:
            train(model, optimizer, BATCHES[: 5 + 8 * learner.rank])
        ends.append(flat(model))
    return ends


@loop
def easgd_with_fewer_steps_than_its_period() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with roundelay.join(model, optimizer, roundelay.EASGD(period=1000)) as learner:
        train(model, optimizer, learner.share(BATCHES[:8]))
    return flat(model) != flat(net())


@loop
def collectives_of_its_own() -> Any:
    """The program has a process group of its own, which is used; last, since it stays."""
    dist: Any = torch.distributed
    if "RANK" not in os.environ:
        return [1, 41]
    dist.init_process_group("gloo")
    count = 0
    for strategy in roundelay.BMUF(block=4), roundelay.ADPSGD(), roundelay.ASGD():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with roundelay.join(model, optimizer, strategy) as learner:
            for x, y in learner.share(BATCHES):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                dist.all_reduce(loss.detach())
                count += 1
            size = learner.num_learners
    dist.destroy_process_group()
    return [size, count // 3]


def main(folder: str) -> None:
    """Run all loops; write what they return."""
    warnings.simplefilter("error")
    results = {name: function() for name, function in LOOPS.items()}
    Path(folder, f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])

"""More loops as real programs have them; run by torchrun, each returns what a test looks at, from every learner."""

from __future__ import annotations

import copy
import io
import math
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import roundelay
from real_loops import BATCHES, LOOPS, F, X, Y, flat, loop, main, net, train
from roundelay.errors import RoundelayError
from roundelay.user_loop.joined_learner import JoinedLearner

FIRST = set(LOOPS)  # of the other file


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def told(work: Any, *arguments: Any) -> str:
    """Return the one line by which ``work`` is refused."""
    try:
        work(*arguments)
    except RoundelayError as error:
        return str(error)
    return ""


@loop
def the_rate_by_hand() -> Any:
    """As nanoGPT does it: a rate of 0 in the second half trains nothing, on a server too."""
    ends = []
    for strategy in roundelay.ASGD(), roundelay.BMUF(block=3), roundelay.ADPSGD(), roundelay.EASGD(period=2):
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy) as learner:
            train(model, optimizer, learner.share(BATCHES[:10]))
            middle = flat(model)
            optimizer.param_groups[0]["lr"] = 0.0
            train(model, optimizer, learner.share(BATCHES[:10]))
        moved = max(abs(a - b) for a, b in zip(middle, flat(model), strict=True))
        ends.append([moved < 1e-6 if isinstance(strategy, roundelay.ASGD) else moved < 1.0, middle != flat(net())])
    return ends


@loop
def every_rank_trains() -> Any:
    """With a server: rank 0 is one rank, every rank has a loss, and alone it trains too."""
    ends = []
    for strategy in roundelay.ASGD(), roundelay.EASGD(period=2), roundelay.ASGD(servers=2):
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy) as learner:
            for x, y in learner.share(BATCHES[:12]):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
            ends.append([learner.rank, math.isfinite(loss.item()), flat(model) != flat(net())])
    return ends


@loop
def moving_average_swapped_in() -> Any:
    """Evaluates with averaged weights in mid-epoch, and puts its own back: training goes on as if nothing was."""
    ends = []
    for swap in (False, True):
        model = net()
        optimizer = sgd(model)
        average = copy.deepcopy(model)
        with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
            for k, (x, y) in enumerate(learner.share(BATCHES[:20])):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                with torch.no_grad():
                    for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(now, 0.1)
                if swap and k % 4 == 3:
                    own = copy.deepcopy(model.state_dict())
                    model.load_state_dict(average.state_dict())
                    model(X)
                    model.load_state_dict(own)
        ends.append([flat(model), flat(average)])
    return [ends[0] == ends[1], ends[1]]


@loop
def averaged_model_of_torch() -> Any:
    model = net()
    optimizer = sgd(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
        for _ in range(3):
            train(model, optimizer, learner.share(BATCHES[:10]))
            averaged.update_parameters(model)
            swa.step()
    torch.optim.swa_utils.update_bn([x for x, _ in BATCHES], averaged)
    return flat(averaged)


@loop
def after_the_end() -> Any:
    """After the loop the model has the consensus; after `close` the optimizer is the user's own again."""
    model = net()
    optimizer = sgd(model)
    plain = type(optimizer).step
    learner = roundelay.join(model, optimizer, roundelay.BMUF(block=3))
    train(model, optimizer, learner.share(BATCHES[:9]))
    after = flat(model)
    with learner.consensus() as vector:
        same = after == flat(model) and bool(torch.isfinite(vector).all())
    learner.close()
    learner.close()
    own = optimizer.step.__func__ is plain or "step" not in vars(optimizer)  # type: ignore[attr-defined]  # a method
    closed = flat(model)
    train(model, optimizer, BATCHES[:2])
    torch.save(model[0].state_dict(), file := io.BytesIO())
    return [same, after == closed, own, flat(model) != closed, len(file.getvalue()) < 5000, after]


@loop
def weights_by_frames() -> Any:
    """The weight of a minibatch is its frames; periods in frames are of so many full minibatches."""
    ends = []
    for strategy, frames in (
        (roundelay.BMUF(block_frames=60), 20),
        (roundelay.BMUF(block=3), None),
        (roundelay.Averaging(period_frames=60), 20),
        (roundelay.Averaging(period=3), None),
    ):
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy, minibatch_frames=frames) as learner:
            for x, y in learner.share(BATCHES[:20]):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                learner.tell(frames=10 if frames else None)
                optimizer.step()
        ends.append(flat(model))
    return [ends, told(roundelay.join, net(), sgd(net()), roundelay.BMUF(block_frames=60))]


class Tied(nn.Module):
    """An output layer with the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.out = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.tanh(self.embed(x)))
        return result


@loop
def tied_weights() -> Any:
    model = Tied()
    optimizer = sgd(model)
    with roundelay.join(model, optimizer, roundelay.Averaging(period=2)) as learner:
        for x in learner.share([torch.arange(8).roll(k) for k in range(10)]):
            optimizer.zero_grad()
            F.cross_entropy(model(x), x.roll(1)).backward()
            optimizer.step()
    return [model.out.weight is model.embed.weight, flat(model)]


@loop
def weight_norm() -> Any:
    ends = []
    for kind in (parametrizations.weight_norm, parametrizations.spectral_norm):
        model = net()
        kind(model[0])
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, roundelay.Averaging(period=2)) as learner:
            train(model, optimizer, learner.share(BATCHES[:10]))
        ends.append([flat(model), bool(torch.isfinite(model(X)).all())])
    return ends


@loop
def batch_norm() -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = sgd(model)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        train(model, optimizer, learner.share(BATCHES[:20]))
    return [flat(model), torch.cat([b.float().reshape(-1) for b in model.buffers()]).tolist()]


@loop
def refusals() -> Any:
    """What cannot be right is named in one line."""
    lines = []
    model = net()
    lines.append(told(roundelay.join, model, torch.optim.LBFGS(model.parameters()), roundelay.BMUF()))
    model = nn.Sequential(nn.Linear(4, 8), nn.SyncBatchNorm(8), nn.Linear(8, 1))
    lines.append(told(roundelay.join, model, sgd(model), roundelay.BMUF()))
    model, other = net(), net()
    lines.append(told(roundelay.join, model, sgd(other), roundelay.BMUF()))
    with roundelay.join(model, sgd(model), roundelay.BMUF()):
        lines.append(told(roundelay.join, model, sgd(model), roundelay.BMUF()))

    def sparse() -> None:
        table = nn.Embedding(8, 4, sparse=True)
        optimizer = sgd(table)
        with roundelay.join(table, optimizer, roundelay.Synchronous()) as learner:
            for x in learner.share([torch.arange(8)] * 4):
                optimizer.zero_grad()
                table(x).square().mean().backward()
                optimizer.step()

    lines.append(told(sparse))

    def moved() -> None:
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, roundelay.BMUF()) as learner:
            for x, y in learner.share(BATCHES[:8]):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                layer: Any = model[0]
                layer.weight = nn.Parameter(layer.weight.detach().clone())
                optimizer.step()

    lines.append(told(moved))
    return lines


@loop
def half_precision() -> Any:
    model = net()
    optimizer = sgd(model)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        for x, y in learner.share(BATCHES[:20]):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x).float(), y)
            loss.backward()
            optimizer.step()
    return flat(model)


@loop
def half_precision_weights() -> Any:
    model = net().bfloat16()
    optimizer = sgd(model)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        for x, y in learner.share(BATCHES[:20]):
            optimizer.zero_grad()
            F.mse_loss(model(x.bfloat16()).float(), y).backward()
            optimizer.step()
    return [flat(model), flat(net().bfloat16())]


@loop
def another_type_after_join() -> Any:
    """``model.to(...)`` after join: to the same device it does nothing; to another type it is named."""

    def convert() -> None:
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, roundelay.BMUF()) as learner:
            model.to("cpu")
            train(model, optimizer, learner.share(BATCHES[:4]))
            model.double()
            train(model, optimizer, [(x.double(), y.double()) for x, y in BATCHES[:4]])

    return told(convert)


@loop
def an_exception_caught_in_the_body() -> Any:
    model = net()
    optimizer = sgd(model)
    caught = 0
    with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
        for k, (x, y) in enumerate(learner.share(BATCHES[:20])):
            try:
                if k == 2 and learner.rank == learner.num_learners - 1:
                    raise ValueError("out of memory")
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            except ValueError:
                caught += 1
    return [caught, flat(model)]


@loop
def accumulation_with_a_remainder() -> Any:
    """Steps after every third minibatch and after the last, which is a different number on each learner."""
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=2), roundelay.ADPSGD():
        model, steps = net(), 0
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy) as learner:
            shared = learner.share(BATCHES[:39])
            for k, (x, y) in enumerate(shared):
                (F.mse_loss(model(x), y) / 3).backward()
                if k % 3 == 2 or k == len(shared) - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                    steps += 1
        ends.append(flat(model))
    return ends


@loop
def early_stopping_on_the_first_rank() -> Any:
    """Rank 0 alone evaluates and stops after two epochs; the others hear nothing of it: that is named."""

    def run() -> None:
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
            for epoch in range(4):
                train(model, optimizer, learner.share(BATCHES[:10]))
                if learner.rank == 0 and epoch == 1:
                    break

    return told(run)


@loop
def resumed_from_its_own_checkpoint() -> Any:
    """The program saves model and optimizer as it always did, on rank 0 between epochs, and goes on from there."""
    saved: dict[str, Any] = {}
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
        for epoch in range(3):
            train(model, optimizer, learner.share(BATCHES[:10]))
            if epoch == 1:
                saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    through = flat(model)
    again = net()
    optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    with roundelay.join(again, optimizer, roundelay.Synchronous()) as learner:
        again.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train(again, optimizer, learner.share(BATCHES[:10]))
    return [max(abs(a - b) for a, b in zip(through, flat(again), strict=True)), through]


@loop
def two_optimizers_of_one_model() -> Any:
    model = net()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)
    with (
        roundelay.join(model, first, roundelay.BMUF(block=3)) as learner,
        roundelay.join(model, second, roundelay.BMUF(block=3)),
    ):
        for x, y in learner.share(BATCHES[:20]):
            first.zero_grad()
            second.zero_grad()
            F.mse_loss(model(x), y).backward()
            first.step()
            second.step()
    return flat(model)


class Endless(IterableDataset[Any]):
    """Never ends; the loop breaks after so many steps."""

    def __iter__(self) -> Any:
        while True:
            yield from zip(X, Y, strict=True)


@loop
def an_endless_loader() -> Any:
    model = net()
    optimizer = sgd(model)
    with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
        for k, (x, y) in enumerate(learner.share(DataLoader(Endless(), batch_size=2))):
            if k == 15:
                break
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    return flat(model)


@loop
def a_learner_that_never_steps() -> Any:
    """Without `share`, the first one has no data at all."""
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=3), roundelay.ADPSGD():
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy) as learner:
            first = learner.num_learners > 1 and learner.rank == 0
            train(model, optimizer, [] if first else BATCHES[:7])
        ends.append(flat(model))
    return ends


@loop
def backward_passes_that_differ() -> Any:
    """One learner calls backward() twice before a step, and never did before: that is named."""

    def run() -> None:
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, roundelay.Synchronous()) as learner:
            for k, (x, y) in enumerate(learner.share(BATCHES[:20])):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                if k == 3 and learner.rank == 0:
                    F.mse_loss(model(x), y).backward()
                optimizer.step()

    return told(run)


@loop
def fewer_minibatches_than_learners() -> Any:
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=3), roundelay.ADPSGD(), roundelay.ASGD():
        model = net()
        optimizer = sgd(model)
        with roundelay.join(model, optimizer, strategy) as learner:
            counts = [train(model, optimizer, learner.share(BATCHES[:n])) for n in (1, 0, 1)]
        ends.append([sum(counts), flat(model)])
    return ends


def seed_worker(worker: int) -> None:
    torch.manual_seed(worker)


@loop
def all_settings_of_a_loader() -> Any:
    model = net()
    optimizer = sgd(model)
    loader = DataLoader(
        TensorDataset(X, Y, torch.arange(82)), batch_size=4, shuffle=True, num_workers=1, worker_init_fn=seed_worker,
        persistent_workers=True, prefetch_factor=2, drop_last=True, generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    seen: list[list[int]] = []
    with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
        shared = learner.share(loader)
        for _ in range(2):
            epoch: list[int] = []
            for x, y, indices in shared:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                epoch += indices.tolist()
            seen.append(epoch)
    return seen


@loop
def a_state_that_the_loop_carries() -> Any:
    """An LSTM language model: the state goes on from minibatch to minibatch."""
    torch.manual_seed(1)
    model = nn.LSTM(4, 3)
    optimizer = sgd(model)
    state: Any = None
    with roundelay.join(model, optimizer, roundelay.BMUF(block=3)) as learner:
        for x, _ in learner.share(BATCHES[:20]):
            optimizer.zero_grad()
            out, state = model(x.unsqueeze(0).expand(5, -1, -1), state)
            out.square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            state = tuple(each.detach() for each in state)
    return flat(model)


@loop
def a_parameter_without_a_gradient() -> Any:
    """PyTorch leaves it alone, weight decay and all."""
    ends = []
    for strategy in roundelay.Synchronous(), roundelay.BMUF(block=3):
        model = nn.ModuleDict({"used": net(), "unused": nn.Linear(2, 2)})
        before = flat(model["unused"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
        with roundelay.join(model, optimizer, strategy) as learner:
            train(model["used"], optimizer, learner.share(BATCHES[:10]))
        ends.append(flat(model["unused"]) == before)
    return ends


@loop
def consensus_on_the_first_rank_only() -> Any:
    """It is refused where the others go on: last, since the learners then end apart."""
    model = net()
    optimizer = sgd(model)
    learner = roundelay.join(model, optimizer, roundelay.BMUF(block=3))

    def run(learner: JoinedLearner) -> None:
        for k, (x, y) in enumerate(learner.share(BATCHES[:20])):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if k == 2 and learner.rank == 0:
                with learner.consensus():
                    model(X)

    line = told(run, learner)
    if line:
        learner.abandon(line)
    else:
        learner.close()
    return line


if __name__ == "__main__":
    for name in FIRST:
        del LOOPS[name]
    main(sys.argv[1])

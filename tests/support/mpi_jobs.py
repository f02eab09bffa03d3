"""What the ranks of the MPI tests run; each function is called as ``function(runtime, settings)``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from result_validity import check_dropped_groups, check_results
from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import NumericalError
from roundelay.learner import Learner
from roundelay.runtimes.blocking import run_blocking
from roundelay.runtimes.mpi import mpi_runtime as mpi
from roundelay.runtimes.mpi.mpi_communicator import MpiCommunicator
from roundelay.runtimes.mpi.mpi_runtime import MpiRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Asynchronous, Strategy
from roundelay.training.loop import Job
from tiny_jobs import Watching, adamw, sgd, tiny_job

Settings = dict[str, Any]


@dataclass
class Gossip(Asynchronous):
    """Half-way to a neighbour at each step, by a request; what one side gains the other loses."""

    conserves_mean: ClassVar[bool] = True
    share: float = 0.3

    def setup(self, learner: Learner) -> None:
        self.turn = 0
        self.asked: Awaitable[Tensor] | None = None

    def overlap(self, learner: Learner) -> None:
        self.turn += 1
        size = learner.comm.size
        to = (learner.comm.rank + 1 + self.turn % max(1, size - 1)) % size
        self.asked = learner.comm.request(learner.weights, to)

    async def step(self, learner: Learner) -> None:
        assert self.asked is not None
        learner.weights.add_(await self.asked)
        learner.descend()

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        change = (learner.weights - theirs) * self.share
        learner.weights.sub_(change)
        return change


@dataclass
class Summing(Asynchronous):
    """One server adds what learners send to its weights, and answers by them."""

    servers: int = 1

    async def step(self, learner: Learner) -> None:
        learner.weights.copy_(await learner.comm.request(learner.grad * (-0.05 * learner.weight), 0))

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        learner.weights.add_(theirs)
        return learner.weights

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.broadcast(learner.weights.clone(), root=0)


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "averaging": Averaging,
    "gossip": Gossip,
    "summing": Summing,
    "synchronous": Synchronous,
}
OPTIMIZERS = {"sgd": sgd(momentum=0.9), "adamw": adamw()}


def job_of(settings: Settings) -> Job:
    """Make the job that a test describes."""
    return tiny_job(
        STRATEGIES[settings["strategy"]](**settings.get("hyperparameters", {})),
        minibatches=settings["minibatches"],
        optimizer=OPTIMIZERS[settings.get("optimizer", "sgd")],
        task={"frames_per_epoch": 330, "batch_norm": True, "dropout": 0.1} | settings.get("task", {}),
        budget=settings.get("budget", {}),
        debug=settings.get("debug", False),
    )


def train(runtime: MpiRuntime, settings: Settings) -> Any:
    """Train, and return the consensus."""
    training = job_of(settings).training(runtime)
    consensus = run_blocking(training.run())
    return {"weights": consensus.tolist(), "scores": training.scores, "seconds": runtime.now()}


def train_all(runtime: MpiRuntime, settings: Settings) -> Any:
    """Train several jobs one after another, so that only the first has to wait for torch to be imported."""
    results = []
    for job in settings["jobs"]:
        own = mpi.runtime(None)
        results.append(train(own, job))
        own.finish()
    return results


def fail(runtime: MpiRuntime, settings: Settings) -> Any:
    """Raise on one rank, in the middle of a computation, while the others wait for it."""
    training = job_of(settings).training(runtime)

    def burst(*_: Any) -> None:
        if training.learner.minibatch >= 8 and runtime.rank == settings["rank"]:
            if settings["how"] == "kill":
                os.kill(os.getpid(), 9)
            if settings["how"] == "own":
                raise NumericalError("the loss is not what it was")
            raise ZeroDivisionError("by hand")

    training.observers.append(Watching(burst))
    return run_blocking(training.run()).tolist()


def sleep(runtime: MpiRuntime, settings: Settings) -> None:
    """Tell that we are here, and stay."""
    with open(os.path.join(settings["folder"], f"pid-{runtime.rank}"), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


# -- verbs ------------------------------------------------------------------------------------------------------


class Echo(Strategy):
    """Answer by what was asked, and by whom; or, for the first of a pair, when the second has come."""

    def __init__(self) -> None:
        self.first: DeferredReply | None = None

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        if theirs.dtype == torch.int32:
            if self.first is None:
                self.first = DeferredReply()
                return self.first
            self.first.send(torch.tensor([source], dtype=torch.int32))
            self.first = None
        return torch.cat([theirs.reshape(-1), torch.tensor([source]).to(theirs)])


def _learner() -> Learner:
    return Learner(nn.Linear(3, 2))


def verbs(runtime: MpiRuntime, settings: Settings) -> Any:
    """Try every verb; assertions fail by name."""
    learner = _learner()
    run_blocking(_verbs(runtime, learner, Echo()))
    return runtime.rank


async def _verbs(runtime: MpiRuntime, learner: Learner, echo: Strategy) -> None:
    view = await runtime.rendezvous(learner, {"rank": runtime.rank}, lambda reports, _: {"reports": list(reports)})
    assert view.plan == {"reports": [{"rank": rank} for rank in range(view.size)]}
    comm = learner.comm
    await _collectives(comm)
    await _exchanges(comm)
    early = comm.request(torch.ones(2), (comm.rank + 1) % comm.size) if comm.size > 1 else None
    time.sleep(0.02 * comm.rank)
    runtime.start_serving(learner, echo)  # perhaps after the request of another
    assert early is None or (await early).tolist() == [1.0, 1.0, comm.rank]
    await _requests(comm)
    await check_results(comm)
    # Groups: of the odd and the even, in reverse order; requests in them name ranks of the group.
    parity = [[rank for rank in reversed(range(comm.size)) if rank % 2 == odd] for odd in (0, 1)]
    for _ in range(20):
        group = comm.split([ranks for ranks in parity if ranks])
    assert isinstance(comm, MpiCommunicator)
    assert comm.num_kept_groups <= 2  # each split finds the communicator that the last but one has left
    assert [int(r) for r in await group.gather(torch.tensor([comm.rank]))] == parity[comm.rank % 2]
    await _exchanges(group)
    await _requests(group)
    twin = comm.split([ranks for ranks in parity if ranks])  # same members, another group
    a, b = torch.tensor([1.0]), torch.tensor([3.0])
    order = (group, twin) if comm.rank < 2 else (twin, group)
    pending = {id(g): g.mean(a if g is group else b) for g in order}
    assert (await pending[id(group)]).item() == 1.0
    assert (await pending[id(twin)]).item() == 3.0
    await check_dropped_groups(comm, rounds=300)
    await comm.mean(torch.zeros(1))
    await runtime.stop_serving(learner)


async def _collectives(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    x = torch.full((1000,), float(rank))
    weights = [0.5 * (r + 1) for r in range(size)]
    y = torch.arange(6.0).view(2, 3) + rank
    first, second = comm.mean(x, weights[rank]), comm.mean(y)  # two under way at once
    y_mean = await second
    assert y_mean is y
    assert torch.allclose(y, torch.arange(6.0).view(2, 3) + (size - 1) / 2)
    expected = sum(w * r for r, w in enumerate(weights)) / sum(weights) if size > 1 else 0.0
    assert torch.allclose(await first, torch.full((1000,), expected))
    nothing = torch.tensor([float(rank)])
    assert (await comm.mean(nothing, 0.0)).item() == rank
    sick = torch.tensor([float("nan") if rank == size - 1 and size > 1 else 2.0])
    assert (await comm.mean(sick, 0.0 if rank == size - 1 and size > 1 else 1.0)).item() == 2.0
    half = torch.full((3,), float(rank), dtype=torch.bfloat16)
    assert (await comm.mean(half)).tolist() == [(size - 1) / 2] * 3
    strided = torch.full((4, 4), float(rank))[:, 1]
    assert (await comm.mean(strided)).tolist() == [(size - 1) / 2] * 4
    everyone = await comm.gather(torch.full((rank * 50000,), rank, dtype=torch.int16))
    assert [(e.numel(), e.dtype, bool((e == r).all())) for r, e in enumerate(everyone)] == [
        (r * 50000, torch.int16, True) for r in range(size)
    ]
    counter = torch.tensor(rank)  # a tensor without dimensions, as batch norm has
    assert int(await comm.broadcast(counter, root=size - 1)) == size - 1


async def _exchanges(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    for numel in (0, 1, 1000, 500_000):
        x = torch.full((numel,), float(rank))
        pending = [comm.exchange(x, right, left), comm.exchange(x.to(torch.float64) + 0.5, right, left)]
        x.fill_(-1)  # it was copied at once
        second, first = await pending[1], await pending[0]
        assert first.dtype == torch.float32
        assert first.tolist() == [float(left)] * numel
        assert second.tolist() == [left + 0.5] * numel
    both = comm.exchange(torch.tensor([rank]), left, left), comm.exchange(torch.tensor([rank]), right, right)
    assert [int(await other) for other in both] == [left, right]


async def _requests(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    for to in range(size):  # ourselves among them
        pending = [comm.request(torch.full((n,), 7.0 * rank, dtype=torch.float64), to) for n in (0, 3, 300_000)]
        for n, answer in zip((0, 3, 300_000), pending, strict=True):
            assert (await answer).tolist() == [7.0 * rank] * n + [rank]
    await comm.mean(torch.zeros(1))
    if size > 1:
        if rank in (0, 1):  # the first is answered when the second has come
            later = comm.request(torch.tensor([5 + rank], dtype=torch.int32), size - 1)
            assert (await later).tolist() in ([0], [1], [5 + rank, rank])
        await comm.mean(torch.zeros(1))


def mismatch(runtime: MpiRuntime, settings: Settings) -> None:
    """Call collectives that do not go together."""
    run_blocking(_mismatch(runtime))


async def _mismatch(runtime: MpiRuntime) -> None:
    learner = _learner()
    await runtime.rendezvous(learner, {}, lambda reports, _: {})
    await learner.comm.mean(torch.zeros(5 if runtime.rank == 0 else 7))


def assemble_again(runtime: MpiRuntime, settings: Settings) -> None:
    """Assemble a second time, as after a loss."""
    learner = _learner()
    for _ in range(2):
        run_blocking(runtime.rendezvous(learner, {}, lambda reports, _: {}))


# -- progress ---------------------------------------------------------------------------------------------------


class _Busy:
    """Work that holds the interpreter and calls no MPI."""

    parts: Sequence[slice] = ()

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, ready: Callable[[slice], None] | None) -> None:
        time.sleep(self.seconds)

    def ready(self, part: slice) -> None:
        """Nobody wants to know."""


def counter(runtime: MpiRuntime, settings: Settings) -> Any:
    """Count on all ranks; and while rank 0, who has the window, does not call MPI for a while."""
    return run_blocking(_count(runtime))


async def _count(runtime: MpiRuntime) -> Any:
    learner = _learner()
    await runtime.rendezvous(learner, {}, lambda reports, _: {})
    got = [await runtime.fetch_add("a", 1) for _ in range(100)]
    other = await runtime.fetch_add("b", 5)
    await learner.comm.mean(torch.zeros(1))
    slowest = 0.0
    if runtime.rank == 0:
        time.sleep(0.5)  # not by compute: no thread calls MPI either
        assert threading.active_count() <= 2  # us, and the one that watches the launcher
    else:
        time.sleep(0.05)
        for key in ("a", "c"):
            begin = time.perf_counter()
            await runtime.fetch_add(key, 1)
            slowest = max(slowest, time.perf_counter() - begin)
    await learner.comm.mean(torch.zeros(1))
    return {"got": got, "other": other, "slowest": slowest}


def idle(runtime: MpiRuntime, settings: Settings) -> Any:
    """Wait for rank 0, which sleeps; return the share of a core that waiting took."""
    return run_blocking(_idle(runtime))


async def _idle(runtime: MpiRuntime) -> float:
    learner = _learner()
    await runtime.rendezvous(learner, {}, lambda reports, _: {})
    wall, used = time.perf_counter(), time.process_time()
    if runtime.rank == 0:
        time.sleep(1.0)
    await learner.comm.mean(torch.zeros(1))
    return (time.process_time() - used) / (time.perf_counter() - wall)


class Broken(Strategy):
    """Cannot reply."""

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        raise ZeroDivisionError("while serving")


def fail_to_serve(runtime: MpiRuntime, settings: Settings) -> None:
    """Ask rank 0, which fails to reply: in the thread that serves while it computes, or while it waits itself."""
    run_blocking(_fail_to_serve(runtime, computing=settings["computing"]))


async def _fail_to_serve(runtime: MpiRuntime, *, computing: bool) -> None:
    learner = _learner()
    await runtime.rendezvous(learner, {}, lambda reports, _: {})
    runtime.start_serving(learner, Broken())
    if runtime.rank == 1:
        await learner.comm.request(torch.ones(10), 0)
    elif computing:
        await runtime.compute(learner, _Busy(0.3))
    await learner.comm.mean(torch.zeros(1))


def overlap(runtime: MpiRuntime, settings: Settings) -> Any:
    """Ask rank 0 while it computes; return how long the answers took, and how long a mean under way took."""
    return run_blocking(_overlap(runtime))


async def _overlap(runtime: MpiRuntime) -> Any:
    learner = _learner()
    await runtime.rendezvous(learner, {}, lambda reports, _: {})
    runtime.start_serving(learner, Echo())
    slowest = 0.0
    mean = learner.comm.mean(torch.ones(500_000))
    if runtime.rank == 0:
        await runtime.compute(learner, _Busy(1.0))
    else:
        for _ in range(5):
            begin = time.perf_counter()
            await learner.comm.request(torch.ones(1000), 0)
            slowest = max(slowest, time.perf_counter() - begin)
    begin = time.perf_counter()
    await mean
    waited = time.perf_counter() - begin
    await learner.comm.mean(torch.zeros(1))
    await runtime.stop_serving(learner)
    return {"slowest": slowest, "waited": waited}

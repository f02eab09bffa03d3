"""Any PyTorch loop, on many learners: three lines change."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn

from roundelay.communicator import Communicator, gather_json
from roundelay.errors import LearnerLost, NumericalError, SettingsError
from roundelay.files import write_bytes, write_json
from roundelay.learner import Learner
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Task, seed_minibatch
from roundelay.training.budget import Budget, Claim, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.evaluation import is_finite
from roundelay.training.evaluation import save as save_checkpoint
from roundelay.training.loop import Gradient, Training
from roundelay.user_loop.loaders import CommonBatches, PrivateBatches, is_private, make_common

__all__ = ["JoinedLearner", "Minibatch", "join"]

T = TypeVar("T")
B = TypeVar("B")
log = logging.getLogger(__name__)


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    *,
    schedule: Schedule | None = None,
    clip: float | None = None,
    seed: int | None = None,
    checkpoints: str | Path | None = None,
    record: str | Path | None = None,
    runtime: Runtime | None = None,
) -> JoinedLearner:
    """Make this process a learner of the run that torchrun, mpirun or Slurm started, or of one of its own.

    ``strategy`` takes over averaging and the optimizer's steps; ``optimizer.step()`` left in the loop does nothing.
    With ``seed``, torch's generators are seeded for each minibatch, so that dropout repeats whoever trains it.
    With ``checkpoints``, a folder, `JoinedLearner.epochs` saves the state of all learners there after each epoch, and a
    job that is started again continues from it.
    With ``record``, a folder that may be the same, it is written there who computed, communicated and waited when, for
    ``roundelay watch`` and ``roundelay calibrate``.

    >>> import roundelay
    >>> model = nn.Linear(2, 1)
    >>> learner = join(model, torch.optim.SGD(model.parameters(), lr=0.1), roundelay.Synchronous())
    >>> for x, y in learner.share([(torch.ones(4, 2), torch.ones(4, 1))] * 10):
    ...     with learner.minibatch():
    ...         nn.functional.mse_loss(model(x), y).backward()
    >>> learner.close()
    """
    learner, saver, folder = Learner(model, optimizer, clip=clip), None, Path(record) if record is not None else None
    if checkpoints is not None:
        Path(checkpoints).mkdir(parents=True, exist_ok=True)
        saver = Saver(Path(checkpoints))
    if runtime is not None:
        if folder is not None:
            raise SettingsError("record: the runtime that was given has its own")
        return JoinedLearner(learner, strategy, runtime, schedule=schedule, seed=seed, saver=saver)
    from roundelay.user_loop.runtime_detection import detect_runtime  # with all of torch.distributed

    resumed = saver is not None and bool(saver.checkpoints.positions())
    runtime, end = detect_runtime(folder, resumed=resumed)
    return JoinedLearner(learner, strategy, runtime, schedule=schedule, seed=seed, saver=saver, folder=folder, end=end)


class _UsersTask(Task):
    """Minibatches of a user's own loop; each counts as one frame unless the user says how many it has."""

    nominal_frames = 1
    minibatches_per_epoch = 1

    def frames(self, epoch: int, index: int) -> int:
        return 1


@dataclasses.dataclass
class Minibatch:
    """A minibatch that is being trained."""

    frames: int = 1
    """Its weight in averages."""
    loss: Tensor | float | None = None
    """What it came to, for the record, and so that the run stops where it is not finite."""


class _Done:
    """How far a user's loop has come, which checkpoints hold too."""

    def __init__(self) -> None:
        self.epochs = self.minibatches = 0

    def attach(self, learner: Learner) -> None:
        """Need nothing of the learner."""

    def state_dict(self) -> dict[str, Tensor]:
        return {name: torch.tensor(number) for name, number in vars(self).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.epochs, self.minibatches = int(state["epochs"]), int(state["minibatches"])


class JoinedLearner:
    """A learner in a loop of the user's own."""

    def __init__(
        self,
        learner: Learner,
        strategy: Strategy,
        runtime: Runtime,
        *,
        schedule: Schedule | None,
        seed: int | None,
        saver: Saver | None = None,
        folder: Path | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._seed, self._runtime, self._me, self._folder, self._end_runtime = seed, runtime, learner, folder, end
        self._training = Training(
            learner, strategy, runtime, task=_UsersTask(), budget=Budget(1, 1), schedule=schedule, seed=seed or 0
        )
        self._training.stretches = [SyncInterval(0, 0, warmup=False, evaluate=False)]
        self._training.saver = saver
        self._done = learner.stateful["loop"] = _Done()
        self._claim: Claim | None = None
        self._unmet = False
        self._reached = 0  # where our own minibatches end
        if learner.optimizer is not None:
            _silence(learner.optimizer)
        self._runtime.run(self._training.assemble())
        self._go_on()
        self._describe(ended=False)

    def _go_on(self) -> None:
        """Stand where the checkpoint was made that we were put back to, if there is one."""
        everyone = self._runtime.run(gather_json(self._training.world, vars(self._done)))
        self._done.epochs = max(each["epochs"] for each in everyone)  # who is new among us was told nothing
        self._done.minibatches = max(each["minibatches"] for each in everyone)
        self._training.stretches = [SyncInterval(0, self._done.minibatches, warmup=False, evaluate=False)]
        self._training.stretch = 0

    def _describe(self, *, ended: bool) -> None:
        """Say what the record is of, and whether there will be more of it."""
        if self._folder is None or self._training.world.rank:
            return
        from roundelay.runtimes.mpi.mpi_runtime import under_mpi

        about = {
            "on": "mpi" if under_mpi() else "processes",
            "strategy": type(self._training.strategy).__name__,
            "learners": self.num_learners,
            "servers": self._training.strategy.servers,
            "parameters": sum(parameter.numel() for parameter in self._me.module.parameters()),
            "ended": ended,
        }
        RunFolder(self._folder).describe(about)

    @property
    def rank(self) -> int:
        """This learner's number among the learners, from 0; a server's among the servers."""
        return self._me.index

    @property
    def num_learners(self) -> int:
        """How many learners train."""
        return self._training.learners

    @property
    def is_server(self) -> bool:
        """Whether this rank only serves."""
        return self._me.is_server

    # -- the loop -----------------------------------------------------------------------------------------------

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs up to ``total``, from where the last checkpoint was made, and make one after each.

        Every rank must go through it.  Without ``checkpoints`` it counts from 0.
        """
        while self._done.epochs < total:
            yield self._done.epochs
            self._meet()
            self._done.epochs += 1
            self._save(self._training.stretches[-1].end)

    def _save(self, minibatches: int) -> None:
        saver, trained = self._training.saver, minibatches > self._done.minibatches
        self._done.minibatches = minibatches
        if saver is not None and trained:
            saver.wait()
            self._runtime.run(_any(self._training.world))  # what was saved last is on disk everywhere
            save_checkpoint(self._training, minibatches)
            self._runtime.run(_any(self._training.world))

    def share(self, loader: Iterable[B], *, private: bool | None = None) -> Iterator[B]:
        """Hand out this learner's minibatches of ``loader``, and end on all learners together.

        By default learners claim the minibatches of one common loader, each used once.  Where the loader gives every
        learner its own (a DistributedSampler, an IterableDataset, any plain iterable, or ``own=True``), each trains
        all of its own, and uneven numbers do no harm.  A server is handed nothing: it serves until all have finished.
        """
        self._meet()
        handed = (
            self._own(PrivateBatches(loader))
            if (is_private(loader) if private is None else private)
            else self._common(loader)
        )
        for claim, batch in handed:
            self._claim = claim
            yield batch
            if self._claim is not None:
                raise SettingsError("a minibatch was handed out and not trained: use 'with learner.minibatch():'")

    def _common(self, loader: Iterable[B]) -> Iterator[tuple[Claim, B]]:
        pool: CommonBatches[B] = self._runtime.run(make_common(self._training.world, loader))
        first = self._open(len(pool))
        while not self._over:
            epoch = self._training.epoch
            claim = None if self.is_server else self._guarded(self._training.claim())
            if epoch != self._training.epoch:
                continue  # somebody was lost: claim anew
            if claim is None:
                self._meet()  # after a loss there may be more
            elif claim.number is None:
                self._idle(claim)
            else:
                yield claim, pool[claim.number - first]

    def _own(self, own: PrivateBatches[B]) -> Iterator[tuple[Claim, B]]:
        first, training, rounds = self._open(0), self._training, 0
        epoch, group = -1, training.world
        while not self._over:
            if epoch != training.epoch:
                epoch, group = training.epoch, training.world.split(training.partition())
            if self.is_server or not (self._guarded(_any(group, own.more)) if group.size > 1 else own.more):
                if epoch == training.epoch:
                    self._meet()
                continue
            if epoch != training.epoch:
                continue
            position, rounds = first + rounds * self.num_learners, rounds + 1
            self._reached = position + self.num_learners
            if own.more:
                yield Claim(position + self.rank, position), own.take()
            else:
                self._idle(Claim(None, position))

    def _open(self, minibatches: int) -> int:
        """Begin a stretch of so many minibatches; return the number of the first."""
        training = self._training
        first = training.stretches[-1].end
        training.stretches.append(SyncInterval(first, first + minibatches, warmup=False, evaluate=False))
        training.stretch = len(training.stretches) - 1
        training.offer([(first, first + minibatches)])
        training.claim_from(range(first, first + minibatches))
        self._unmet = True  # also if the loop is left early: then we meet before whatever comes next
        return first

    @property
    def _over(self) -> bool:
        """Whether all have met at the end of this stretch."""
        return not self._unmet

    def _meet(self) -> None:
        """Meet all others at the end of a stretch, unless some of it is left because somebody was lost."""
        if self._unmet:
            stretch = self._training.stretch
            self._guarded(self._training.meet())
            self._unmet = self._training.stretch == stretch
            if not self._unmet:
                self._count()

    def _count(self) -> None:
        """Agree on how far we have come: with minibatches of their own some may have trained more than others."""
        stretches = self._training.stretches
        reached = self._runtime.run(gather_json(self._training.world, self._reached))
        stretches[-1] = dataclasses.replace(stretches[-1], end=max(stretches[-1].end, *reached))

    @contextlib.contextmanager
    def minibatch(self, frames: int = 1) -> Iterator[Minibatch]:
        """Train the minibatch that `share` has just handed out: forward and backward passes go inside.

        Several backward passes add up, as gradients do.  ``frames`` is the minibatch's weight in averages.  A loss or
        else a gradient that is not finite stops the run; the loss is known only where the loop tells it:

        >>> import roundelay
        >>> model = nn.Linear(2, 1)
        >>> learner = join(model, torch.optim.SGD(model.parameters(), lr=0.1), roundelay.Synchronous())
        >>> for x in learner.share([torch.ones(4, 2)] * 10):
        ...     with learner.minibatch() as minibatch:
        ...         minibatch.loss = model(x).square().mean()
        ...         minibatch.loss.backward()
        >>> learner.close()
        """
        claim, self._claim = self._claim, None
        if claim is None:
            raise SettingsError("'with learner.minibatch():' belongs inside 'for batch in learner.share(loader):'")
        gradient, minibatch = self._guarded(self._begin(claim)), Minibatch(frames)
        if self._seed is not None:
            seed_minibatch(self._seed, 0, claim.number or 0)
        with self._runtime.computing(self._me):
            yield minibatch
            self._me.collect_grad()
            self._me.frames = minibatch.frames
        loss = self._check(minibatch, claim.number)
        if gradient is not None:  # else somebody was lost just then, and this minibatch is handed out again
            self._guarded(self._end(claim, gradient, loss))

    def _check(self, minibatch: Minibatch, number: int | None) -> float:
        """Return the loss; raise where it, or the gradient if we are not told, is not finite."""
        told = minibatch.loss
        loss = float(told.detach() if isinstance(told, Tensor) else math.nan if told is None else told)
        if told is not None and not math.isfinite(loss):
            raise NumericalError(f"{self._training.member}: the loss is {loss} at minibatch {number}")
        if told is None and not is_finite(self._me.grad):
            raise NumericalError(f"{self._training.member}: the gradient is not finite at minibatch {number}")
        return loss

    def _idle(self, claim: Claim) -> None:
        gradient = self._guarded(self._begin(claim))
        if gradient is not None:
            self._guarded(self._end(claim, gradient, math.nan))

    async def _begin(self, claim: Claim) -> Gradient:
        return self._training.begin(claim)

    async def _end(self, claim: Claim, gradient: Gradient, loss: float) -> None:
        for part in gradient.parts:  # only now: there may have been several backward passes
            gradient.ready(part)
        await self._training.end(claim, loss)

    def _guarded(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine; if a learner is lost meanwhile, go on with those who are left, and return nothing.

        What was undone is among the minibatches left, and is handed out again.
        """
        try:
            return self._runtime.run(work)
        except LearnerLost as lost:
            while True:
                self._training.undo(lost)
                try:
                    self._runtime.run(self._training.assemble())
                except LearnerLost as another:
                    lost = another
                else:
                    return None

    # -- the consensus ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def consensus(self) -> Iterator[Tensor]:
        """Let the model have the consensus weights inside, to evaluate them; every rank must enter."""
        self._meet()
        vector = self._runtime.run(self._training.acting.consensus(self._me))
        kept = self._me.snapshot.clone()
        self._me.load(vector)
        yield vector
        self._me.load(kept)

    def save(self, path: str | Path) -> None:
        """Write the consensus model as safetensors, with a JSON description beside it; every rank must call it."""
        with self.consensus():
            if self._training.world.rank == 0:
                path = Path(path)
                state = self._me.module.state_dict()
                data = save({name: tensor.detach().contiguous().clone() for name, tensor in state.items()})
                about = {
                    "strategy": type(self._training.strategy).__name__,
                    "learners": self.num_learners,
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
                write_bytes(path, data)
                write_json(path.with_suffix(".json"), about, sort_keys=False)
        self._runtime.run(_any(self._training.world))

    def close(self) -> None:
        """Leave the run; every rank must call it, or use the learner in a ``with`` statement."""
        self._meet()
        if self._training.saver is not None:
            self._training.saver.wait()
            self._training.saver.close()
        self._runtime.run(_any(self._training.world))
        self._runtime.run(self._runtime.stop_serving(self._me))
        if self._end_runtime is not None:
            self._end_runtime()
        self._describe(ended=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


async def _any(comm: Communicator, flag: object = True) -> bool:
    """Tell whether anybody's flag is up; also a barrier."""
    return any(float(other) for other in await comm.gather(torch.tensor([float(bool(flag))])))


def _silence(optimizer: torch.optim.Optimizer) -> None:
    """Make ``optimizer.step()`` in the user's loop do nothing, and say so once."""
    said = False

    def step(*_: Any, **__: Any) -> None:
        nonlocal said
        if not said:
            said = True
            log.warning("optimizer.step() does nothing here: leaving 'with learner.minibatch():' takes the step")

    optimizer.step = step  # type: ignore[method-assign, assignment]  # that is the point

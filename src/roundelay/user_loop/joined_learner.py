"""Any PyTorch loop, on many learners: three lines change."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator, gather_json
from roundelay.errors import LearnerLost, NumericalError, SettingsError
from roundelay.learner import Learner
from roundelay.runs.run_folder import RunFolder, write_model
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule, seed_minibatch
from roundelay.training.budget import Agenda, Claim, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.guard import is_finite
from roundelay.training.member import Member
from roundelay.training.participation import Participation
from roundelay.user_loop.loaders import CommonBatches, PrivateBatches, is_private, make_common

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
    """Make this process a learner of the run that torchrun, mpirun or Slurm started, or of a run by itself.

    ``strategy`` takes over averaging and the optimizer's steps; ``optimizer.step()`` left in the loop does nothing.
    With ``seed``, torch's generators are seeded for each minibatch, so that dropout repeats on any learner.
    With ``checkpoints``, a folder, `JoinedLearner.epochs` saves the state of all learners there after each epoch, and a
    job that is started again continues from it.
    With ``record``, a folder that may be the same, a record of all computation, communication and waiting is written
    there, for ``roundelay watch`` and ``roundelay calibrate``.

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
            raise SettingsError("record: the given runtime has its own record; leave record out")
        return JoinedLearner(learner, strategy, runtime, schedule=schedule, seed=seed, saver=saver)
    from roundelay.user_loop.runtime_detection import detect_runtime  # with all of torch.distributed

    resumed = saver is not None and bool(saver.checkpoints.positions())
    runtime, end = detect_runtime(folder, resumed=resumed)
    return JoinedLearner(learner, strategy, runtime, schedule=schedule, seed=seed, saver=saver, folder=folder, end=end)


@dataclasses.dataclass
class Minibatch:
    """A minibatch that is being trained."""

    frames: int = 1
    """Its weight in averages."""
    loss: Tensor | float | None = None
    """Its loss, for the record, and so that the run stops if it is not finite."""


class _LoopProgress:
    """How far a user loop has come; a part of checkpoints."""

    def __init__(self) -> None:
        self.epochs = self.minibatches = 0

    def attach(self, learner: Learner) -> None:
        """Need nothing of the learner."""

    def state_dict(self) -> dict[str, Tensor]:
        return {name: torch.tensor(number) for name, number in vars(self).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.epochs, self.minibatches = int(state["epochs"]), int(state["minibatches"])


class JoinedLearner:
    """A learner in a user loop."""

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
        self._learner, self._runtime, self._seed, self._saver = learner, runtime, seed, saver
        self._folder, self._end_runtime = folder, end
        self._member = Member(learner, strategy, runtime, schedule=schedule)
        self._agenda = Agenda(self._member, [SyncInterval(0, 0)])
        checkpointer = Checkpointer(None, saver) if saver is not None else None
        self._participation = Participation(self._member, self._agenda, checkpointer)
        self._progress = learner.stateful["loop"] = _LoopProgress()
        self._claim: Claim | None = None
        self._sync_pending = False
        self._reached = 0  # where our own minibatches end
        if learner.optimizer is not None:
            _disable_step(learner.optimizer)
        self._runtime.run(self._participation.rendezvous())
        self._restore_progress()
        self._describe(ended=False)

    def _restore_progress(self) -> None:
        """Continue at the position of the restored checkpoint, if there is one."""
        everyone = self._runtime.run(gather_json(self._member.world, vars(self._progress)))
        self._progress.epochs = max(each["epochs"] for each in everyone)  # a rank without a part was told nothing
        self._progress.minibatches = max(each["minibatches"] for each in everyone)
        self._agenda.restart(self._progress.minibatches)

    def _describe(self, *, ended: bool) -> None:
        """Write what the record is of, and whether the run has ``ended``."""
        if self._folder is None or self._member.world.rank:
            return
        from roundelay.runtimes.mpi.mpi_runtime import under_mpi

        about = {
            "on": "mpi" if under_mpi() else "processes",
            "strategy": type(self._member.strategy).__name__,
            "learners": self.num_learners,
            "servers": self._member.strategy.servers,
            "parameters": sum(parameter.numel() for parameter in self._learner.module.parameters()),
            "ended": ended,
        }
        RunFolder(self._folder).describe(about)

    @property
    def rank(self) -> int:
        """This learner's number among the learners, from 0; a server's among the servers."""
        return self._learner.index

    @property
    def num_learners(self) -> int:
        """How many learners train."""
        return self._member.num_learners

    @property
    def is_server(self) -> bool:
        """Whether this rank only serves."""
        return self._learner.is_server

    # -- the loop -----------------------------------------------------------------------------------------------

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs up to ``total``, from where the last checkpoint was made, and make one after each.

        Every rank must iterate over it.  Without ``checkpoints`` it counts from 0.
        """
        while self._progress.epochs < total:
            yield self._progress.epochs
            self._synchronize()
            self._progress.epochs += 1
            self._save(self._agenda.intervals[-1].end)

    def _save(self, minibatches: int) -> None:
        trained = minibatches > self._progress.minibatches
        self._progress.minibatches = minibatches
        if self._saver is not None and trained:
            self._saver.wait()
            self._runtime.run(_any(self._member.world))  # the last checkpoint is on every disk
            self._participation.save(minibatches)
            self._runtime.run(_any(self._member.world))

    def share(self, loader: Iterable[B], *, private: bool | None = None) -> Iterator[B]:
        """Hand out this learner's minibatches of ``loader``, and end on all learners together.

        By default learners claim the minibatches of one common loader, each used once.  If the loader gives every
        learner its own (a DistributedSampler, an IterableDataset, any plain iterable, or ``private=True``), each trains
        all of its own; their numbers may differ.  A server gets none: it serves until all have finished.
        """
        self._synchronize()
        handed = (
            self._private(PrivateBatches(loader))
            if (is_private(loader) if private is None else private)
            else self._common(loader)
        )
        for claim, batch in handed:
            self._claim = claim
            yield batch
            if self._claim is not None:
                raise SettingsError("a minibatch was handed out and not trained: use 'with learner.minibatch():'")

    def _common(self, loader: Iterable[B]) -> Iterator[tuple[Claim, B]]:
        pool: CommonBatches[B] = self._runtime.run(make_common(self._member.world, loader))
        first = self._open(len(pool))
        while self._sync_pending:
            generation = self._member.generation
            claim = None if self.is_server else self._run_elastic(self._agenda.claim())
            if generation != self._member.generation:
                continue  # a learner was lost: claim again
            if claim is None:
                self._synchronize()  # after a loss there may be more
            elif claim.number is None:
                self._idle(claim)
            else:
                yield claim, pool[claim.number - first]

    def _private(self, own: PrivateBatches[B]) -> Iterator[tuple[Claim, B]]:
        first, member, rounds = self._open(0), self._member, 0
        generation, group = -1, member.world
        while self._sync_pending:
            if generation != member.generation:
                generation, group = member.generation, member.world.split(member.lockstep_ranks())
            if self.is_server or not (self._run_elastic(_any(group, own.more)) if group.size > 1 else own.more):
                if generation == member.generation:
                    self._synchronize()
                continue
            if generation != member.generation:
                continue
            position, rounds = first + rounds * self.num_learners, rounds + 1
            self._reached = position + self.num_learners
            if own.more:
                yield Claim(position + self.rank, position), own.take()
            else:
                self._idle(Claim(None, position))

    def _open(self, minibatches: int) -> int:
        """Start an interval of so many minibatches; return the number of the first."""
        self._sync_pending = True  # also if the loop is left early: then we synchronize before anything else
        return self._agenda.append(minibatches)

    def _synchronize(self) -> None:
        """Synchronize at the end of an interval, unless some of it remains because a learner was lost."""
        if self._sync_pending:
            index = self._agenda.interval_index
            self._run_elastic(self._participation.synchronize())
            self._sync_pending = self._agenda.interval_index == index
            if not self._sync_pending:  # with private minibatches some may have trained more than others
                reached = self._runtime.run(gather_json(self._member.world, self._reached))
                self._agenda.extend_last(max(reached))

    @contextlib.contextmanager
    def minibatch(self, frames: int = 1) -> Iterator[Minibatch]:
        """Train the minibatch that `share` has just handed out: forward and backward passes go inside.

        Several backward passes add up, as gradients do.  ``frames`` is the minibatch's weight in averages.  A loss that
        is not finite stops the run.  If the loop does not set the loss, the gradient is checked instead:

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
        parts, minibatch = self._run_elastic(self._begin(claim)), Minibatch(frames)
        if self._seed is not None:
            seed_minibatch(self._seed, 0, claim.number or 0)
        with self._runtime.computing(self._learner):
            yield minibatch
            self._learner.collect_grad()
            self._learner.frames = minibatch.frames
        loss = self._check(minibatch, claim.number)
        if parts is not None:  # else a learner was lost just then, and this minibatch is handed out again
            self._run_elastic(self._end(claim, parts, loss))

    def _check(self, minibatch: Minibatch, number: int | None) -> float:
        """Return the loss; raise if it, or the gradient if no loss is set, is not finite."""
        told = minibatch.loss
        loss = float(told.detach() if isinstance(told, Tensor) else math.nan if told is None else told)
        if told is not None and not math.isfinite(loss):
            raise NumericalError(f"{self._member.name}: the loss is {loss} at minibatch {number}")
        if told is None and not is_finite(self._learner.grad):
            raise NumericalError(f"{self._member.name}: the gradient is not finite at minibatch {number}")
        return loss

    def _idle(self, claim: Claim) -> None:
        parts = self._run_elastic(self._begin(claim))
        if parts is not None:
            self._run_elastic(self._end(claim, parts, math.nan))

    async def _begin(self, claim: Claim) -> Sequence[slice]:
        return self._participation.steps.begin(claim, frames=0 if claim.number is None else 1)

    async def _end(self, claim: Claim, parts: Sequence[slice], loss: float) -> None:
        for part in parts:  # only now: there may have been several backward passes
            self._member.active_strategy.ready(self._learner, part)
        await self._participation.end_step(claim.number, loss)

    def _run_elastic(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine; if a learner is lost meanwhile, continue with the survivors, and return ``None``.

        The minibatch that was undone is handed out again.
        """
        try:
            return self._runtime.run(work)
        except LearnerLost as lost:
            while True:
                self._participation.undo(lost)
                try:
                    self._runtime.run(self._participation.rendezvous())
                except LearnerLost as another:
                    lost = another
                else:
                    return None

    # -- the consensus ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def consensus(self) -> Iterator[Tensor]:
        """Give the model the consensus weights inside, to evaluate them; every rank must enter."""
        self._synchronize()
        vector = self._runtime.run(self._participation.consensus())
        kept = self._learner.snapshot.clone()
        self._learner.load(vector)
        yield vector
        self._learner.load(kept)

    def save(self, path: str | Path) -> None:
        """Write the consensus model as safetensors, with a JSON description beside it; every rank must call it."""
        with self.consensus():
            if self._member.world.rank == 0:
                about = {"strategy": type(self._member.strategy).__name__, "learners": self.num_learners}
                write_model(Path(path), self._learner.module, about)
        self._runtime.run(_any(self._member.world))

    def close(self) -> None:
        """Leave the run; every rank must call it, or use the learner in a ``with`` statement."""
        self._synchronize()
        if self._saver is not None:
            self._saver.wait()
            self._saver.close()
        self._runtime.run(_any(self._member.world))
        self._runtime.run(self._runtime.stop_serving(self._learner))
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
    """Return whether the flag of any rank is set; also a barrier."""
    return any(float(other) for other in await comm.gather(torch.tensor([float(bool(flag))])))


def _disable_step(optimizer: torch.optim.Optimizer) -> None:
    """Make ``optimizer.step()`` in the user loop do nothing, with one warning."""
    said = False

    def step(*_: Any, **__: Any) -> None:
        nonlocal said
        if not said:
            said = True
            log.warning("optimizer.step() does nothing here: leaving 'with learner.minibatch():' takes the step")

    optimizer.step = step  # type: ignore[method-assign, assignment]  # that is the point

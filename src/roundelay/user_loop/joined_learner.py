"""Any PyTorch loop, on many learners: two lines are new, and ``optimizer.step()`` is the strategy's step."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import types
import weakref
import zlib
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator, gather_json
from roundelay.errors import LearnerLost, NumericalError, SettingsError
from roundelay.learner import Learner
from roundelay.runs.run_folder import RunFolder, write_model
from roundelay.runtime import Runtime
from roundelay.runtimes.mpi.mpi_runtime import MpiRuntime
from roundelay.runtimes.processes.process_runtime import ProcessRuntime
from roundelay.strategy import Strategy
from roundelay.task import Schedule, seed_minibatch
from roundelay.training.budget import Claim
from roundelay.training.checkpoint_files import Saver
from roundelay.user_loop import program_end
from roundelay.user_loop.act_board import SharedWords
from roundelay.user_loop.acts import Acts
from roundelay.user_loop.course import NO_SHARE, CannotComeBack, Course, LoopState, Way
from roundelay.user_loop.hosted_servers import HostedServers, ServerLearner
from roundelay.user_loop.loaders import Purpose, SharedLoader
from roundelay.user_loop.loop_rank import LoopRank
from roundelay.user_loop.module_learner import ModuleLearner, check_frames, check_several, move_model
from roundelay.user_loop.runtime_detection import Seats

T = TypeVar("T")
B = TypeVar("B")
CLOSES: Purpose = "closes its learner"
STEPS: Purpose = "takes a step without share()"
logger = logging.getLogger(__name__)


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    *,
    schedule: Schedule | None = None,
    clip: float | None = None,
    minibatch_frames: int | None = None,
    seed: int | None = None,
    nonfinite: Literal["stop", "skip"] = "stop",
    checkpoints: str | Path | None = None,
    record: str | Path | None = None,
    device: str | None = None,
    runtime: Runtime | None = None,
) -> JoinedLearner:
    """Make this process a learner of the run that its launcher or its process group describes, or of a run alone.

    From now on ``optimizer.step()`` is the strategy's step; all else in the loop stays what it was.  Inside of the loop
    the model has this learner's weights; before it, after it and after `close` it has the consensus of all learners.
    Servers, if the strategy has any, live in the processes of learners.

    ``minibatch_frames``: how many frames a full minibatch has, for strategies and schedules whose settings are in
    frames; `JoinedLearner.tell` says how many one really has.
    With ``seed``, torch's generators are seeded for each minibatch, so that dropout repeats on any learner.
    A gradient that is not finite stops the run; with ``nonfinite="skip"`` its step is left out.
    With ``checkpoints``, a folder, `JoinedLearner.epochs` saves the state of all learners there after each epoch, and a
    job that is started again continues from it.
    With ``device``, ``"auto"`` or the name of an accelerator, the model is moved to this process's device, and `share`
    moves minibatches there; without it all stays where it is.
    With ``record``, a folder that may be the same, a record of all computation, communication and waiting is written
    there, for ``roundelay watch`` and ``roundelay calibrate``.

    >>> import roundelay
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> learner = join(model, optimizer, roundelay.Synchronous())
    >>> for x, y in learner.share([(torch.ones(4, 2), torch.ones(4, 1))] * 10):
    ...     optimizer.zero_grad()
    ...     nn.functional.mse_loss(model(x), y).backward()
    ...     optimizer.step()
    >>> learner.close()
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner  # inside of Accelerate's and Lightning's wrappers, which may leave out steps
    folder, saver, resumed = Path(record) if record is not None else None, None, False
    if runtime is not None and folder is not None:
        raise SettingsError("record: the given runtime has its own record; leave record out")
    if runtime is not None and strategy.servers:
        raise SettingsError(
            f"runtime: {type(strategy).__name__} has servers, which live in learners' processes; leave runtime out"
        )
    if checkpoints is not None:
        Path(checkpoints).mkdir(parents=True, exist_ok=True)
        saver = Saver(Path(checkpoints))
        resumed = bool(saver.checkpoints.positions())
    check_frames(strategy, minibatch_frames)
    if device is not None:
        move_model(model, optimizer, device)
    learner = ModuleLearner(model, optimizer, clip=clip)
    learner.nominal_frames = minibatch_frames or 1
    try:
        seats = None if runtime is not None else Seats(strategy.servers, folder, resumed=resumed)
        if seats is not None and seats.size > 1:
            check_several(model)
        joined = JoinedLearner(
            learner,
            strategy,
            runtime,
            seats,
            schedule=schedule,
            seed=seed,
            nonfinite=nonfinite,
            saver=saver,
            folder=folder,
        )
        joined.batch_device = learner.weights.device if device is not None else None
        return joined
    except BaseException:
        learner.release()
        raise


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
    """A learner in a user loop.

    The strategy lock is released whenever the user's code runs, so that requests of other learners are served at any
    time.  At rest, between two loops, the model has the consensus, and this learner's own weights are set aside.
    """

    batch_device: torch.device | None = None
    """Where `share` moves minibatches; ``None``: they stay where they are."""

    def __init__(
        self,
        learner: ModuleLearner,
        strategy: Strategy,
        runtime: Runtime | None,
        seats: Seats | None,
        *,
        schedule: Schedule | None,
        seed: int | None,
        nonfinite: Literal["stop", "skip"],
        saver: Saver | None,
        folder: Path | None,
    ) -> None:
        self._seed, self._saver, self._folder, self._seats = seed, saver, folder, seats
        self._skips = nonfinite == "skip"
        size = seats.size if seats is not None else runtime.initial_size if runtime is not None else 1
        asked = strategy.serves_requests and not strategy.servers and len(strategy.lockstep_groups(size)) > 1
        learner.copied, learner.keeps_edits = asked or strategy.steps_on_server, strategy.steps_on_server
        learner.stateful["loop"] = self._progress = _LoopProgress()
        self._servers = HostedServers()
        if seats is not None:
            for number in seats.hosted:
                self._host(seats, number, ServerLearner(learner), strategy, saver)
        runtime = runtime if runtime is not None else self._make_runtime(seats)
        learner.keeps_undo = runtime.elastic and not (strategy.atomic_step or strategy.partial_step_ok)
        self._learner, self._runtime, self._course = learner, runtime, Course()
        self._words: SharedWords | None = None
        self._waits = seats is not None and seats.comes_back  # whether we have not asked the others to let us in yet
        self._aside: Tensor | None = None  # our own weights, while the model has the consensus
        self._handed: list[int] = []
        self._frames: int | None = None  # of the next step, as the user has told
        self._loss: Tensor | float | None = None
        self._opened = self._void = self._closed = self._mean_is_taken = self._mean_queued = self._idle = False
        self._steps_in_loop = self._position = self._reached = 0
        self._syncing, self._counts_epochs = True, False
        self._cleared = False  # whether `minibatch` has taken the last step, and nothing was done since
        self._hooks: list[Any] = []
        self._shown = learner.shown()
        self._rank = LoopRank(learner, strategy, runtime, schedule=schedule, saver=saver, follower=self, waits=True)
        self._member = self._rank.member
        if self._waits:
            self._aside = learner.shown()
        else:
            self._enter()
            self._describe(ended=False)
        self._put_step(learner)
        self._users_code = contextlib.ExitStack()
        self._leave_inside()
        if self.num_learners > 1:
            program_end.watch_exit()
        program_end.note_progress()
        self._at_exit = program_end.at_exit(self, self._member.name)

    def _enter(self) -> None:
        """Take our place among the ranks; if we come back, in the middle of what they do."""
        self._rank.enter()
        self._acts = Acts(self._member, self._rank.agenda)
        while True:
            self._settle()
            if self._course.joined:  # those who are further have told us all
                self._rest_with(self._learner.weights.clone())
                return
            try:
                self._restore_progress()
                self._aside = self._learner.shown()
                self._servers.put(lambda rank: rank.runtime.run(rank.participation.consensus()))
                self._shown = self._runtime.run(self._rank.participation.consensus())
                self._servers.put(lambda rank: rank.agenda.rest())
                self._rank.agenda.rest()
                self._learner.load(self._shown)
                self._course.joined = True
                self._publish()
                return
            except LearnerLost as lost:
                self._aside = None
                self._rank.regroup(lost)

    def _let_in(self) -> None:
        """Ask the others to let us in, if we come back and have not done so."""
        if self._waits:
            if not self._learner.is_current:
                self._renew()
            self._waits = False
            self._enter()

    def _make_runtime(self, seats: Seats | None) -> Runtime:
        assert seats is not None
        return seats.runtime(seats.learner)

    def _host(self, seats: Seats, number: int, learner: ServerLearner, strategy: Strategy, saver: Saver | None) -> None:
        made: list[Runtime] = []

        def make() -> LoopRank:
            made.append(seats.runtime(number))
            return LoopRank(learner, strategy, made[0], saver=saver, serves=True)

        def fail(error: BaseException) -> None:
            for runtime in made:
                if isinstance(runtime, ProcessRuntime):
                    runtime.abandon(f"server {number} has failed: {error}")

        self._servers.start(make, fail)

    def _put_step(self, learner: ModuleLearner) -> None:
        """Make ``optimizer.step`` ours; what it was is what the strategy's step calls."""
        optimizer = learner.optimizer
        assert optimizer is not None
        reference = weakref.ref(self)
        self._step_before = vars(optimizer).get("step")
        self._supported_scaling = vars(optimizer).get("_step_supports_amp_scaling")

        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not say
        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # a scheduler's wrapper says so
            joined = reference()
            return joined.step(closure) if joined is not None else None

        step._wrapped_by_lr_sched = True  # a scheduler made later need not wrap it
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # GradScaler leaves overflows to us
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]  # that is the point

    def _remove_step(self) -> None:
        optimizer = self._learner.optimizer
        for name, value in ("step", self._step_before), ("_step_supports_amp_scaling", self._supported_scaling):
            vars(optimizer).pop(name, None)
            if value is not None:
                setattr(optimizer, name, value)

    def _restore_progress(self) -> None:
        """Continue at the position of the restored checkpoint, if there is one."""

        def gather(rank: LoopRank) -> list[Any]:
            progress: Any = rank.learner.stateful.get("loop")
            return rank.runtime.run(gather_json(rank.world, vars(progress) if progress is not None else {}))

        self._servers.put(lambda rank: rank.agenda.restart(max(each.get("minibatches", 0) for each in gather(rank))))
        everyone = gather(self._rank)
        self._progress.epochs = max(
            each.get("epochs", 0) for each in everyone
        )  # a rank without a part was told nothing
        self._progress.minibatches = max(each.get("minibatches", 0) for each in everyone)
        self._rank.agenda.restart(self._progress.minibatches)
        self._share_words()

    def _share_words(self) -> None:
        """Count acts in memory that all learners of this host map, if all are on it: a step then costs no message."""
        self._words = SharedWords() if SharedWords.usable(self._member) else None
        if self._words is None:
            return
        words, world = self._words, self._rank.world
        self._servers.put(lambda rank: rank.runtime.run(gather_json(rank.world, None)))
        self._servers.put(lambda rank: rank.runtime.run(gather_json(rank.world, True)))
        addresses = self._runtime.run(gather_json(world, words.address))[self._member.strategy.servers :]
        if all(self._runtime.run(gather_json(world, words.open(addresses)))):
            self._acts.words = words
            self._settle()

    def _describe(self, *, ended: bool) -> None:
        """Write what the record is of, and whether the run has ``ended``."""
        if self._folder is None or self.rank:
            return
        about = {
            "on": self._seats.on if self._seats is not None else "processes",
            "strategy": type(self._member.strategy).__name__,
            "learners": self.num_learners,
            "servers": self._member.strategy.servers,
            "parameters": sum(parameter.numel() for parameter in self._learner.model.parameters()),
            "ended": ended,
        }
        RunFolder(self._folder).describe(about)

    # -- who we are ---------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This learner's number among the learners, from 0."""
        return self._learner.index if not self._waits else self.num_learners - 1

    @property
    def num_learners(self) -> int:
        """How many learners train."""
        if self._waits and self._seats is not None:
            return self._seats.size
        return self._member.num_learners

    @property
    def in_lockstep(self) -> bool:
        """Whether all learners take their steps together."""
        return len(self._member.active_strategy.lockstep_groups(self.num_learners)) == 1

    @property
    def position(self) -> int:
        """How many minibatches all learners together have been handed, as far as this one knows."""
        return self._position

    # -- the user's code and ours -------------------------------------------------------------------------------

    def _leave_inside(self) -> None:
        self._users_code.enter_context(self._runtime.computing(self._learner))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Hold the strategy lock, which is released while the user's code runs; for `SharedLoader`."""
        self._users_code.close()
        try:
            yield
        finally:
            self._leave_inside()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine among ranks that are at rest; for `SharedLoader`."""
        return self._runtime.run(work)

    def _elastic(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine; if a learner is lost meanwhile, settle among the survivors and return ``None``."""
        generation = self._member.generation
        result = self._rank.elastic(work)
        if generation != self._member.generation:
            self._settle()
        return result

    # -- losses, and learners that come back ----------------------------------------------------------------------

    @property
    def standing(self) -> tuple[int, ...]:
        """How far we are in our script's loops."""
        return self._course.rank

    def describe(self) -> dict[str, Any]:
        """Return what one that is behind must know."""
        optimizer, now = self._learner.optimizer, self._course.now
        assert optimizer is not None
        now.epochs, now.minibatches = self._progress.epochs, self._progress.minibatches
        now.rates = [float(group["lr"]) for group in optimizer.param_groups]
        return self._course.encode()

    def catch_up(self, described: dict[str, Any]) -> None:
        """Take over from the furthest: if it is past our loop, that is over for us."""
        first = not self._course.joined
        ahead = self._course.catch_up(described)
        self._progress.minibatches = ahead.minibatches
        if first:
            self._progress.epochs = self._progress.epochs if self._counts_epochs else ahead.epochs
            optimizer = self._learner.optimizer
            assert optimizer is not None
            for group, rate in zip(optimizer.param_groups, ahead.rates, strict=False):
                group["lr"] = rate
        elif not self.at_rest and (ahead.loops > self._course.now.loops or ahead.at_rest):
            self._rest_with(self._learner.weights.clone())
        elif not self.at_rest:
            self._course.now.consensuses = ahead.consensuses

    def note_loss(self, generation: int, lost: LearnerLost) -> None:
        """Prepare for a new membership: at rest we bring the consensus, which has all that was trained."""
        if self.at_rest:
            self._learner.weights.copy_(self._shown)
        self._servers.put(lambda rank: rank.regroup_after(generation, lost))

    def regroup(self, lost: LearnerLost) -> None:
        """Continue with the survivors, and with those who come back, between two loops; for `SharedLoader`."""
        learner, edited = self._learner, not torch.equal(self._learner.snapshot, self._shown)
        mine = learner.shown()
        self._rank.regroup(lost)
        self._settle()
        if self.at_rest:
            self._aside, self._shown = learner.weights.clone(), learner.weights.clone()
            learner.load(mine if edited else self._shown)

    def _rest_with(self, vector: Tensor) -> None:
        """Come to rest with the consensus that all have."""
        self._handed.clear()
        self._course.rest()
        self._aside, self._shown = self._learner.weights.clone(), vector
        self._learner.load(vector)

    def approach(self) -> Way:
        """Return how to begin the next loop; for `SharedLoader`."""
        if self._waits and self._seats is not None:
            self._course.note_published(self._seats.published())
            if (way := self._course.way()) != "skip":
                self._let_in()
        way = self._course.way()
        if way == "skip":
            self._course.skip()
        return way

    def enter_loop(self) -> LoopState:
        """Enter the loop that the others are in; for `SharedLoader`."""
        ahead = self._course.enter()
        self._aside, self._steps_in_loop, self._position = None, 0, ahead.first
        self._rank.resting = False
        self._settle()
        return ahead

    def _settle(self) -> None:
        """Begin in a membership: what was handed out and not trained is handed out again."""
        if self._handed:
            self._learner.set_grads([None] * len(self._learner.grads))
            self._void = True
        self._handed, self._opened, self._mean_is_taken = [], False, False
        self._acts.begin()
        self._learner.forget_gradients()
        self._learner.take_snapshot()
        self._learner.frames = 0
        self._hook_means()

    @property
    def learners_comm(self) -> Communicator:
        """The communicator of the learners alone."""
        servers, world = self._member.strategy.servers, self._member.world
        if not servers:
            return world
        groups = [range(servers), range(servers, world.size)]
        self._servers.put(lambda rank: rank.world.split(groups))
        return world.split(groups)

    @property
    def generation(self) -> int:
        """The number of the current membership."""
        return self._member.generation

    # -- loops over minibatches ---------------------------------------------------------------------------------

    def share(
        self, loader: Iterable[B], *, own: bool | None = None, equal: bool | None = None, private: bool | None = None
    ) -> SharedLoader[B]:
        """Return this learner's minibatches of ``loader``; iterate over the result once an epoch.

        A loader whose minibatches have numbers (a DataLoader over a map-style dataset, a list) is divided: each
        minibatch goes to one learner, loaded by the loader's own workers.  A loader that cannot be divided, or whose
        sampler has divided the samples already, gives each learner its own minibatches; ``own`` decides it by hand.
        With ``equal`` all learners take equally many, for loops with collectives of their own; the remainder of a
        common loader is left out.  That is the default if the program has a process group of its own.

        >>> import roundelay
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with join(model, optimizer, roundelay.Averaging()) as learner:
        ...     batches = learner.share([torch.ones(4, 2)] * 10)
        ...     for epoch in range(2):
        ...         for x in batches:
        ...             optimizer.zero_grad()
        ...             model(x).square().mean().backward()
        ...             optimizer.step()
        """
        if equal is None:
            equal = self.num_learners > 1 and torch.distributed.is_available() and torch.distributed.is_initialized()
        return SharedLoader(self, loader, own=private if own is None else own, equal=equal)

    def follow(self, scheduler: Any) -> Any:
        """Let ``scheduler.step()`` go as far as all learners together have come, in minibatches; return it.

        Build the scheduler for the minibatches of all learners, such as ``OneCycleLR(total_steps=len(loader))``.
        """
        step, begun = scheduler.step, scheduler.last_epoch - self._position

        def follow(*_: Any, **__: Any) -> None:
            while scheduler.last_epoch - begun < self._position:
                step()

        scheduler.step = follow
        return scheduler

    @property
    def at_rest(self) -> bool:
        """Whether the model has the consensus, between two loops."""
        return self._aside is not None

    def meet(self, purpose: Purpose) -> set[Purpose]:
        """Wait for all learners between two loops; return what they do next, or raise if that cannot go together.

        Where learners may be lost and come back, they are not at the same point of their programs: nothing is asked.
        """
        if self._runtime.elastic or self.num_learners == 1:
            return {purpose}
        self._servers.put(lambda rank: rank.runtime.run(gather_json(rank.world, None)))
        everyone = self._runtime.run(gather_json(self._rank.world, purpose))
        purposes: set[Purpose] = {each for each in everyone if each is not None}
        if len(purposes) > 1 and purposes != {CLOSES, STEPS}:
            other = next(each for each in everyone if each not in (None, purpose))
            raise SettingsError(
                f"{self._member.name} {purpose}, and another learner {other}: all learners must iterate over share() "
                "equally often; to stop early, let all learners know"
            )
        return purposes

    def come_to_rest(self) -> None:
        """Come to rest, if a loop was left early."""
        while not self.at_rest:
            self._rest()

    def begin(
        self,
        minibatches: int,
        *,
        shared: bool = True,
        own: bool = False,
        order: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Begin a loop, with all learners: from our own weights, or from what the user has made of the model.

        ``order`` has the samples of each minibatch, for those who come later; ``own``: each has its own minibatches.
        """
        learner = self._learner
        if not learner.is_current:
            learner = self._renew()
        learner.heal()
        edited = not torch.equal(learner.snapshot, self._shown)
        self._servers.put(lambda rank: _begin_server(rank, minibatches))
        root = self._rank.agree(edited)
        if root is None:
            assert self._aside is not None
            learner.load(self._aside)
        else:
            learner.weights.copy_(learner.snapshot)
            self._rank.restart_from(root)
            learner.edit = None
        first = self._rank.begin(minibatches)
        self._aside, self._steps_in_loop, self._position = None, 0, first
        self._course.begin(first, shared=shared, own=own, order=order)
        self._publish()
        self._settle()
        return first

    def _publish(self) -> None:
        """Let those who come back know where we are."""
        if self.rank == 0 and self._seats is not None and self._runtime.elastic:
            self._seats.publish({**self.describe(), "order": None})

    def _begin_without_share(self) -> None:
        """Begin a loop that has its own data, at its first step."""
        if self._waits:
            raise CannotComeBack(NO_SHARE)
        while self.at_rest:
            try:
                if self._course.way() == "together":
                    self.meet(STEPS)
                    self.begin(0, shared=False, own=True)
                else:
                    self.enter_loop()
            except LearnerLost as lost:
                self.regroup(lost)

    def _renew(self) -> ModuleLearner:
        """Train what the optimizer has now: layers were unfrozen, or parameters added."""
        old = self._learner
        old.release(keep_grads=True)
        new = ModuleLearner(old.model, old.optimizer, copied=old.copied, clip=old.clip)  # type: ignore[arg-type]  # joined: has one
        new.plain_step, new.keeps_undo, new.keeps_edits = old.plain_step, old.keeps_undo, old.keeps_edits
        new.nominal_frames = old.nominal_frames
        self._rank.replace_learner(new)
        self._servers.renew(new)
        self._learner, self._shown = new, new.weights.new_empty(0)
        return new

    def claim(self) -> tuple[Claim | None, int]:
        """Claim the next common minibatch; return it and the membership in which that counts."""
        with self.inside():
            while True:
                generation = self._member.generation
                claim = self._elastic(self._rank.agenda.claim())
                if self.at_rest:  # the others are past this loop
                    return None, self._member.generation
                if generation == self._member.generation:
                    return claim, generation

    def even_claims(self) -> Iterator[Claim]:
        """Return our claims if all learners take equally many."""
        left, size, rank = self._rank.agenda.left, self.num_learners, self.rank
        return (Claim(left[base + rank], left[base]) for base in range(0, len(left) - len(left) % size, size))

    def reach(self, position: int) -> None:
        """Note how far our own minibatches go, so that the next loop is numbered behind those of all learners."""
        self._reached = max(self._reached, position)

    def hand_out(self, generation: int, claim: Claim) -> bool:
        """Begin a minibatch; return whether it still counts: if a learner was lost since the claim, it does not."""
        if generation != self._member.generation:
            return False
        with self.inside():
            assert claim.number is not None
            self._void = False
            self._handed.append(claim.number)
            self._position = claim.position + (self.num_learners if self.in_lockstep else 1)
            self._open(claim.position, before_forward=True)
        if self._seed is not None:
            seed_minibatch(self._seed, 0, claim.number)
        return True

    def end_loop(self, handed: int) -> None:
        """Come to our end of a loop in which so many minibatches were handed out."""
        if handed and not self._steps_in_loop:
            raise SettingsError(
                f"share: {handed} minibatches were handed out and optimizer.step() was never called; "
                "to evaluate, iterate over the loader itself"
            )
        with self.inside():
            self._rest()

    def _rest(self) -> None:
        """Take part in what others still do until all have come to their end; then show the consensus."""
        generation = self._member.generation
        self._elastic(self._follow_others())
        if generation != self._member.generation:
            return  # some minibatches may be handed out again
        self._learner.heal()
        self._servers.put(LoopRank.rest)
        vector = self._rank.rest()
        if generation != self._member.generation:
            self._settle()
        if vector is not None and not self.at_rest:
            self._servers.put(lambda rank: _agree_on_consensus(rank, None, reached=0, counts=False))
            try:
                vector = _agree_on_consensus(self._rank, vector, reached=self._reached, counts=not self._idle)
            except LearnerLost as lost:
                self._rank.regroup(lost)
                self._settle()
                return
            assert vector is not None
            self._rest_with(vector)

    async def _follow_others(self) -> None:
        """At our end: take part, without a minibatch, in the acts of those who step with us."""
        learner = self._learner
        kept = learner.grads
        learner.heal()  # edits after the last step count at once, in what neighbours ask for
        if self._opened:
            await self._idle_step()
        await self._acts.end()
        while True:
            entered, act = await self._acts.consensus_is_pending(), await self._acts.pending()
            if act == "mean":
                await self._idle_mean()
            elif act == "step":
                await self._idle_step()
            elif entered:
                await self._consensus()
            elif await self._acts.all_ended():
                break
        learner.set_grads(kept)

    async def _idle_mean(self) -> None:
        self._learner.set_grads([None] * len(self._learner.grads))
        await self._mean(0)

    async def _idle_step(self) -> None:
        if not self._mean_is_taken:
            self._learner.set_grads([None] * len(self._learner.grads))
        await self._take_step(0, math.nan, idle=True)

    # -- the step -----------------------------------------------------------------------------------------------

    def tell(self, *, frames: int | None = None, loss: Tensor | float | None = None) -> None:
        """Tell how many frames the next step is of, its weight in averages, and its loss, for the record."""
        if frames is not None and frames < 0:
            raise SettingsError(f"tell: frames must not be negative, not {frames}")
        self._frames, self._loss = (
            frames if frames is not None else self._frames,
            loss if loss is not None else self._loss,
        )

    def step(self, closure: Any = None) -> Any:
        """Take the strategy's step, for all that was handed out since the last one; this is ``optimizer.step``."""
        learner = self._learner
        if self._closed:
            return learner.plain_step() if closure is None else learner.plain_step(closure)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()  # here, where requests are served meanwhile; the step itself needs no loss
        if self._cleared and not self._handed and not learner.own_grads:
            if self._steps_in_loop:
                logger.debug("optimizer.step() after 'with learner.minibatch():', which has taken the step")
            return result
        frames, loss = self._step_frames, self._loss
        self._frames = self._loss = None
        if self._unscale():
            frames = 0
        while not self._void:
            number = self._handed[-1] if self._handed else learner.minibatch
            value = self._check(loss, number) if frames else math.nan
            frames = 0 if value is None else frames
            with self.inside():
                if self.at_rest:
                    self._begin_without_share()
                generation, handed = self._member.generation, bool(self._handed)
                self._elastic(self._take_step(frames, math.nan if value is None else value))
            if handed or generation == self._member.generation:
                break  # if a learner was lost meanwhile, what was handed out is handed out again
        self._void = self._cleared = False
        self._steps_in_loop += 1
        program_end.note_progress()
        return result

    @property
    def _step_frames(self) -> int:
        """How many frames the next step is of."""
        return self._frames if self._frames is not None else max(1, len(self._handed)) * self._learner.nominal_frames

    def _unscale(self) -> bool:
        """Undo the scaling of a GradScaler; return whether a gradient overflowed, so that this step is left out."""
        optimizer: Any = self._learner.optimizer
        found = getattr(optimizer, "found_inf", None)
        if found is None:
            return False
        if optimizer.grad_scale is not None and (grads := self._learner.own_grads):
            torch._foreach_div_(grads, float(optimizer.grad_scale))
        optimizer.found_inf = optimizer.grad_scale = None  # fused optimizers would look at them
        return bool(found)

    def _check(self, told: Tensor | float | None, number: int) -> float | None:
        """Return the loss, or NaN if it is not told; ``None``: not finite, and skipped; else raise."""
        if told is not None:
            loss = float(told.detach() if isinstance(told, Tensor) else told)
            problem = "" if math.isfinite(loss) else f"the loss is {loss}"
        else:
            loss, problem = math.nan, "" if _finite(self._learner.own_grads) else "the gradient is not finite"
        if not problem:
            return loss
        reason = f"{self._member.name}: {problem} at minibatch {number}"
        if not self._skips:
            raise NumericalError(f"{reason}; try a lower learning rate, or join(..., nonfinite='skip')")
        logger.warning("%s; skipped", reason)
        self._member.write("skipped", epoch=self._progress.epochs, index=number, reason=reason)
        return None

    def _open(self, position: int, *, before_forward: bool) -> None:
        """Start what overlaps the gradient, once a step."""
        if self._opened:
            return
        learner = self._learner
        if before_forward:
            learner.heal()
            learner.fold_buffers()
        self._parts = self._rank.participation.steps.begin(Claim(None, position), frames=1)
        self._opened = True

    async def _take_step(self, frames: int, loss: float, *, idle: bool = False) -> None:
        learner, participation, strategy = self._learner, self._rank.participation, self._member.active_strategy
        if (
            self._hooks and not self._mean_is_taken
        ):  # the user's backward passes were inside of `no_sync`, or we are idle
            await self._mean(frames)
        await self._acts.announce("step", idle=idle)
        while self._hooks and await self._acts.mean_is_missing():
            await self._mean(0)
        if self._mean_is_taken:
            learner.heal()
        else:
            learner.collect_grad()
        self._open_late(frames)
        learner.frames = frames
        if not self._hooks:
            if not frames:
                learner.discard()
            for part in self._parts:
                strategy.ready(learner, part)
            await strategy.step(learner)
        elif frames or (idle and _finite(learner.own_grads)):  # all learners see the same mean, and skip it or not
            learner.descend(learner.grad)
        self._idle = idle
        participation.steps.finish(self._handed, loss, skipped=not frames)
        if participation.checkpointer is not None:
            participation.checkpointer.check()
        learner.take_snapshot()
        learner.frames, self._handed, self._opened, self._mean_is_taken = 0, [], False, False

    def _open_late(self, frames: int) -> None:
        """Open a step that no minibatch was handed out for: in a loop without `share`, or at our end of one."""
        if not self._opened:
            self._open(self._position, before_forward=False)
            if frames:
                self._position += self.num_learners
                self.reach(self._position)

    # -- the mean gradient, at the end of a backward pass -----------------------------------------------------

    def _hook_means(self) -> None:
        """Take the mean gradient at the end of each backward pass, where the strategy has one: clipping sees it."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._member.active_strategy.averages_gradients and self._member.world.size > 1:
            self._hooks = [
                place.tensor.register_post_accumulate_grad_hook(self._queue_mean) for place in self._learner.own_slots
            ]

    def _queue_mean(self, _: Tensor) -> None:
        if not self._mean_queued and not self._closed:
            self._mean_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._mean_queued = False
        if not self._syncing or self._void:
            return
        with self.inside():
            if self.at_rest:
                self._begin_without_share()
            frames = self._step_frames
            while True:
                generation = self._member.generation
                self._elastic(self._mean(frames))
                if generation == self._member.generation or self._void:
                    return

    async def _mean(self, frames: int) -> None:
        await self._acts.announce("mean")
        self._learner.collect_grad()
        self._open_late(frames)
        self._learner.frames = frames
        await self._learner.agree_on_gradients(self._learner.comm)
        await self._member.active_strategy.average_gradients(self._learner)
        self._learner.averaged()
        self._mean_is_taken = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes inside add to the gradient alone; the mean is taken after the first one outside.

        As under DistributedDataParallel, this saves communication if gradients are accumulated over minibatches.
        """
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = True

    @contextlib.contextmanager
    def minibatch(self, frames: int | None = None) -> Iterator[Minibatch]:
        """Train the minibatch that `share` has just handed out: forward and backward passes go inside.

        The gradient is cleared before it, and the step taken after it, for loops that do not want to call
        ``optimizer.step()``.  ``frames`` is the minibatch's weight in averages.

        >>> import roundelay
        >>> model = nn.Linear(2, 1)
        >>> learner = join(model, torch.optim.SGD(model.parameters(), lr=0.1), roundelay.Synchronous())
        >>> for x in learner.share([torch.ones(4, 2)] * 10):
        ...     with learner.minibatch() as minibatch:
        ...         minibatch.loss = model(x).square().mean()
        ...         minibatch.loss.backward()
        >>> learner.close()
        """
        if not self._handed and not self._void:
            raise SettingsError("'with learner.minibatch():' belongs inside 'for batch in learner.share(loader):'")
        self._learner.set_grads([None] * len(self._learner.grads))
        self._frames = frames
        taken, minibatch = self._steps_in_loop, Minibatch(self._step_frames)
        yield minibatch
        if taken == self._steps_in_loop:
            self.tell(frames=minibatch.frames, loss=minibatch.loss)
            self.step()
        self._learner.set_grads([None] * len(self._learner.grads))
        self._cleared = True

    # -- epochs and checkpoints -------------------------------------------------------------------------------

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs up to ``total``, from where the last checkpoint was made, and make one after each.

        Every learner must iterate over it.  Without ``checkpoints`` it counts from 0.
        """
        if self._waits and self._seats is not None and (published := self._seats.published()) is not None:
            self._progress.epochs = self._course.begin_late(published)
        self._counts_epochs = True
        while self._progress.epochs < total:
            self._course.begin_epoch()
            yield self._progress.epochs
            with self.inside():
                self.come_to_rest()
                self.meet("ends an epoch")
                self._progress.epochs += 1
                if not self._waits and not self._course.is_behind:
                    self._save_checkpoint(self._rank.agenda.intervals[-1].end)

    def _save_checkpoint(self, minibatches: int) -> None:
        trained = minibatches > self._progress.minibatches
        self._progress.minibatches = minibatches
        if self._saver is None or not trained:
            return
        assert self._aside is not None
        self._learner.load(self._aside)
        self._learner.weights.copy_(self._aside)
        self._servers.put(lambda rank: _save_server(rank, minibatches))
        self._saver.wait()
        try:
            self._rank.barrier()  # the last checkpoint is on every disk
            self._rank.participation.save(minibatches)
            self._rank.barrier()
        except LearnerLost as lost:  # who has passed the barrier goes on: the next checkpoint is after the next epoch
            self._learner.load(self._shown)
            self.regroup(lost)
        self._learner.load(self._shown)

    # -- the consensus ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def consensus(self) -> Iterator[Tensor]:
        """Give the model the consensus inside, in the middle of a loop; every learner must enter.

        Between loops the model has the consensus already, and nothing needs to be entered.
        """
        learner = self._learner
        if self.at_rest or self._closed:
            learner.heal()
            yield learner.shown()
            return
        with self.inside():
            while True:
                learner.heal()
                before, own, vector = self._course.now.consensuses, learner.shown(), self._elastic(self._consensus())
                if vector is None and self._course.now.consensuses > before:  # others have had it
                    own = vector = learner.weights.clone()
                if vector is not None:
                    break
            self._course.now.consensuses = before + 1
            learner.load(vector)
        try:
            yield vector
        finally:
            learner.load(own)

    async def _consensus(self) -> Tensor:
        await self._acts.enter_consensus()
        self._servers.put(lambda rank: rank.elastic(rank.participation.consensus()))
        return await self._rank.participation.consensus()

    def save(self, path: str | Path) -> None:
        """Write the consensus model as safetensors, with a JSON description beside it.

        In the middle of a loop every learner must call it; between loops and after them the first is enough.
        """
        with self.consensus():
            if self.rank == 0:
                about = {"strategy": type(self._member.strategy).__name__, "learners": self.num_learners}
                write_model(Path(path), self._learner.model, about)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the run: the model keeps the consensus, and ``optimizer.step()`` is what it was."""
        if self._closed:
            return
        self._users_code.close()
        try:
            self._let_in()
            self.come_to_rest()
            while STEPS in self.meet(CLOSES):  # others have more to train: take part without minibatches
                self.begin(0, shared=False, own=True)
                self.come_to_rest()
        except BaseException as error:
            self._abandon(f"{self._member.name} has stopped: {type(error).__name__}: {error}")
            raise
        if self._saver is not None:
            self._saver.wait()
            self._saver.close()
        seats = self._seats
        while True:
            self._servers.put(LoopRank.leave)
            try:
                self._rank.leave()
                break
            except LearnerLost as lost:
                self.regroup(lost)
        self._servers.put(lambda rank: _end_server(rank, seats))
        self._servers.put(None)
        self._release()
        if seats is not None:
            seats.end(seats.learner, self._runtime)
        self._servers.join()
        if seats is not None:
            seats.merge()
        self._describe(ended=True)

    def _release(self) -> None:
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        self._remove_step()
        if self._words is not None:
            self._words.close()
        self._learner.release()
        program_end.forget(self._at_exit)

    def abandon(self, reason: str) -> None:
        """Leave at once, without the others: they are told the ``reason``."""
        if not self._closed:
            self._users_code.close()
            self._abandon(reason)

    def _abandon(self, reason: str) -> None:
        if isinstance(self._runtime, ProcessRuntime | MpiRuntime):
            self._runtime.abandon(reason)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if program_end.is_failure(error):
            assert kind is not None
            self.abandon(f"{self._member.name} has stopped: {kind.__name__}: {error}")
        else:
            self.close()


def _finite(grads: list[Tensor]) -> bool:
    """Return whether all gradients are finite, in one pass."""
    if not grads:
        return True
    kinds = {(grad.device, grad.dtype, grad.layout) for grad in grads}
    if any(layout is not torch.strided for _, _, layout in kinds):
        raise SettingsError("a gradient is sparse, which no strategy can average; use sparse=False in the embedding")
    if len(kinds) == 1:
        device = grads[0].device
        found, one = torch.zeros(1, device=device), torch.ones(1, device=device)
        with torch.no_grad():
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)
        return not bool(found)
    return all(math.isfinite(float(grad.sum())) or bool(torch.isfinite(grad).all()) for grad in grads)


def _begin_server(rank: LoopRank, minibatches: int) -> None:
    root = rank.agree(edited=False)
    if root is not None:
        rank.restart_from(root)
    rank.begin(minibatches)


def _agree_on_consensus(rank: LoopRank, vector: Tensor | None, *, reached: int, counts: bool) -> Tensor | None:
    """Note how far all have come; make consensus vectors equal that edits after the last step have made different.

    The last step of some may have been one without a minibatch, in which the user's code did not run: the others count.
    """
    digest = None if vector is None else zlib.crc32(vector.detach().cpu().numpy().tobytes())
    everyone = rank.runtime.run(gather_json(rank.world, [reached, digest, counts]))
    rank.agenda.extend_last(max(reached for reached, _, _ in everyone))
    if len({digest for _, digest, _ in everyone if digest is not None}) > 1:
        some = any(counts for _, _, counts in everyone)
        weight = 0.0 if vector is None else float(counts or not some)
        mean = rank.learner.weights.clone() if vector is None else vector
        rank.runtime.run(_mean(rank.world, mean, weight))
    rank.agenda.rest()
    return vector


async def _mean(comm: Communicator, vector: Tensor, weight: float) -> None:
    await comm.mean(vector, weight)


def _save_server(rank: LoopRank, minibatches: int) -> None:
    rank.barrier()
    rank.participation.save(minibatches)
    rank.barrier()


def _end_server(rank: LoopRank, seats: Seats | None) -> None:
    if seats is not None:
        seats.end(rank.runtime.initial_rank, rank.runtime)

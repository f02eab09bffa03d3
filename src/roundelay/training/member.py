"""One rank in the current membership: its learner, its strategy, and the communicator of all ranks."""

from __future__ import annotations

import copy
from typing import Any

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtime import Membership, Runtime
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Schedule
from roundelay.training import rank_state
from roundelay.training.event_order import Order, RecordedOrder, watch
from roundelay.training.minibatch_tracker import MinibatchTracker
from roundelay.training.rank_state import RankState


class Member:
    """A learner with its strategy, as a member of the ranks that train now.

    During warm-up minibatches the active strategy is `Synchronous`; servers take no part in them.
    """

    world: Communicator
    """All ranks of this membership, servers first."""
    num_learners: int
    """Number of learners in this membership, without servers."""

    def __init__(
        self,
        learner: Learner,
        strategy: Strategy,
        runtime: Runtime,
        *,
        schedule: Schedule | None = None,
        order: Order | None = None,
    ) -> None:
        self.learner, self.runtime, self.schedule, self.order = learner, runtime, schedule, order
        learner.schedule = schedule
        self.strategy = copy.deepcopy(strategy)
        self._warmup_strategy = Synchronous()
        self.active_strategy: Strategy = self._warmup_strategy
        self.tracker = MinibatchTracker(runtime)
        self.generation = -1  # of the membership that this rank merged into last
        self.has_model = False  # whether our weights are the model's, not just what the module began with
        self.strategy_starts = 0  # how often a strategy was started: sums of weights are comparable in between

    @property
    def name(self) -> str:
        """Our name in records and messages."""
        return f"{'server' if self.learner.is_server else 'learner'} {self.learner.index}"

    @property
    def in_warmup(self) -> bool:
        """Whether the warm-up strategy is active."""
        return self.active_strategy is self._warmup_strategy

    def write(self, event: str, **fields: Any) -> None:
        """Write an event of this member to the record."""
        self.runtime.record.write(event, self.name, self.runtime.now(), **fields)

    # -- membership ---------------------------------------------------------------------------------------------

    def enter(self, membership: Membership) -> None:
        """Take our rank in a new membership; the runtime has given the learner its communicator."""
        learner, servers = self.learner, self.strategy.servers
        if membership.size <= servers:
            kind = type(self.strategy).__name__
            raise SettingsError(f"{membership.size} ranks cannot train by {kind}, which takes {servers} for serving")
        if membership.size == self.runtime.initial_size:  # after a loss, the strategy continues with any number
            self.strategy.check(membership.size - servers)
        learner.is_server = membership.rank < servers
        learner.index = membership.rank - (0 if learner.is_server else servers)
        self.world, self.num_learners = self.tracker.watch(learner.comm), membership.size - servers
        if self.order is not None:
            self.world = watch(self.world, self.order)

    def settle(self, generation: int) -> None:
        """Count as a holder of the model from ``generation`` on."""
        self.has_model, self.generation = True, generation

    def lockstep_ranks(self) -> list[list[int]]:
        """Return the ranks that step together, and each server by itself."""
        servers = self.strategy.servers
        groups = self.active_strategy.lockstep_groups(self.num_learners)
        return [*([server] for server in range(servers)), *([servers + one for one in group] for group in groups)]

    # -- the strategy -------------------------------------------------------------------------------------------

    def start_strategy(self, *, warmup: bool) -> None:
        """Set up the strategy of the current interval; all ranks have equal weights."""
        self._activate(warmup=warmup)
        self.active_strategy.setup(self.learner)
        self._serve()

    async def regroup_strategy(self, survivor: int, *, warmup: bool, newcomer: bool) -> None:
        """Continue the strategy in a new membership; ``survivor`` is a rank of the one before."""
        self._activate(warmup=warmup)
        await self._send_replicated(survivor, newcomer=newcomer)
        self.active_strategy.regroup(self.learner)
        self._serve()

    def reset_groups(self) -> None:
        """Let the learner communicate with all ranks, each for itself, as before any `setup`."""
        self.learner.comm, self.learner.multiplicity = self.world, 1

    def _activate(self, *, warmup: bool) -> None:
        learner, servers = self.learner, self.strategy.servers
        self.active_strategy = self._warmup_strategy if warmup else self.strategy
        self.reset_groups()
        self.strategy_starts += 1
        self.tracker.requests_are_kept = self.active_strategy.partial_step_ok or servers > 0  # servers take no steps
        if servers and warmup:
            learner.comm = self.world.split([range(servers), range(servers, self.world.size)])
        learner.alias_snapshot(one=self.world.size == 1 or self.active_strategy.atomic_step)

    async def _send_replicated(self, survivor: int, *, newcomer: bool) -> None:
        """Send ``replicated`` state to newcomers; every rank calls `setup`, as it may split groups."""
        strategy = self.active_strategy
        if strategy.replicated:
            kept = {name: getattr(strategy, name, None) for name in strategy.replicated} if not newcomer else {}
            strategy.setup(self.learner)
            for name in strategy.replicated:
                if kept.get(name) is not None:  # a survivor that has not left the warm-up has none yet
                    setattr(strategy, name, kept[name])
                await self.world.broadcast(getattr(strategy, name), root=survivor)
            self.reset_groups()

    def _serve(self) -> None:
        strategy = self.active_strategy
        if strategy.fallback_note and self.world.rank == 0:
            self.write("fallback", note=strategy.fallback_note)
        if strategy.serves_requests:
            serving = self.tracker.serving(strategy)
            self.runtime.start_serving(self.learner, serving if self.order is None else self.order.serving(serving))

    # -- checkpoints --------------------------------------------------------------------------------------------

    @property
    def schedule_state(self) -> dict[str, Any]:
        """What the schedule has decided so far; empty if it decides nothing."""
        state = getattr(self.schedule, "state", None)
        return state() if state is not None else {}

    def restore_schedule(self, state: dict[str, Any]) -> None:
        """Restore what `schedule_state` returned, if the schedule has any."""
        restore = getattr(self.schedule, "restore", None)
        if restore is not None:
            restore(state)

    def capture(self, into: RankState) -> None:
        """Add the state of learner, strategy, random generators, clock and record."""
        rank_state.capture_learner(self.learner, into)
        rank_state.capture_strategy(self.active_strategy, into)
        rank_state.capture_random(into)
        into.state |= {
            "unsafe": self.tracker.trained,
            "warmup": self.in_warmup,
            "strategy_name": type(self.strategy).__name__,
            "schedule": self.schedule_state,
            "runtime": self.runtime.capture(),
        }
        if isinstance(self.order, RecordedOrder):
            into.state["order"] = " ".join(self.order.tokens)

    def restore(self, saved: RankState) -> None:
        """Restore all but weights, optimizer, strategy and schedule, which are restored before."""
        rank_state.restore_stateful(self.learner, saved)
        rank_state.restore_metrics(self.learner, saved)
        if isinstance(self.order, RecordedOrder):
            self.order.tokens[:] = saved.state.get("order", "").split()
        rank_state.restore_random(saved)
        self.runtime.restore(saved.state["runtime"])

"""Membership of a simulated cluster: generations as on processes, and all planned faults.

A killed learner counts as lost after ``cluster.detection_seconds``, as with a real launcher; one that is stopped or
isolated, after ``cluster.heartbeat_timeout`` without a heartbeat.  It is excluded, and asks to join again when it
continues or the partition ends; so does a restarted learner.  Newcomers are admitted at the next rendezvous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from roundelay.errors import LearnerLost
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import MakePlan, Membership, as_newcomer
from roundelay.runtimes.cluster import Cluster, Fault, NetworkPartition, SlowLink, Stop, Straggler
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop, VirtualTask
from roundelay.runtimes.simulator.network import SimulatedNetwork
from roundelay.runtimes.simulator.simulated_communicator import SimulatedRank, not_serving

RETRY_SECONDS = 1e-3
AnyFault = Fault | Stop | NetworkPartition | SlowLink | Straggler


class _Arrival(NamedTuple):
    """A learner at the rendezvous."""

    learner: Learner
    report: dict[str, Any]
    make_plan: MakePlan
    membership: VirtualFuture[Membership]


class SimulatedMembership:
    """The part of a simulation that knows which ranks take part; a rank here is the initial one."""

    def __init__(
        self, loop: VirtualLoop, cluster: Cluster, ranks: list[SimulatedRank], servers: int, record: Record
    ) -> None:
        self.loop, self.cluster, self.ranks, self.servers, self.record = loop, cluster, ranks, servers, record
        self.network: SimulatedNetwork
        self.alive = list(range(len(ranks)))  # the members, in the order of their ranks in this generation
        self.generation, self.ended_early, self.end_reason = -1, False, ""
        self.pending: dict[VirtualFuture[Any], None] = {}  # these raise if the generation ends
        self.tasks: dict[int, VirtualTask[Any]] = {}  # by rank; of a restarted one the last
        self.safe: dict[int, list[int]] = {}  # by id: its safe minibatches
        self.fired: list[AnyFault] = []
        self.ended = 0.0  # when the last one finished
        self.finished = False
        self.restart: Callable[[int], None] = lambda rank: None
        self._ids = list(range(len(ranks)))  # by rank: an excluded learner rejoins under a new id
        self._next_id = len(ranks)
        self._dead: set[int] = set()
        self._newcomers: list[int] = []  # ranks that wait to join
        self._decisions: dict[tuple[int, str], bool] = {}
        self._arrivals: dict[int, _Arrival] = {}

    def schedule(self) -> None:
        """Schedule all faults of the cluster's description."""
        cluster = self.cluster
        for fault in cluster.faults:
            self.loop.call_later(fault.at_seconds, functools.partial(self._kill, fault))
        for stop in cluster.stops:
            self.loop.call_later(stop.at_seconds, functools.partial(self._stop, stop))
        for partition in cluster.partitions:
            self.loop.call_later(partition.at_seconds, functools.partial(self._isolate, partition))
        for slow in cluster.slow_links:
            self.loop.call_later(slow.begin_seconds, functools.partial(self._slow_link, slow))
        for straggler in cluster.stragglers:
            if straggler.announce:
                self.loop.call_later(straggler.begin_seconds, functools.partial(self._slow_learner, straggler))

    def watch_end(self, rank: int, task: VirtualTask[Any]) -> None:
        """Note the time when a learner finishes."""
        self.tasks[rank] = task
        task.end.callbacks.append(self._one_finished)

    def _one_finished(self) -> None:
        self.ended, self.finished = self.loop.now, True
        for rank in self._newcomers:
            self.tasks[rank].kill()
        self._newcomers = []

    # -- generations --------------------------------------------------------------------------------------------

    def rendezvous(
        self, rank: int, learner: Learner, report: dict[str, Any], make_plan: MakePlan
    ) -> VirtualFuture[Membership]:
        """Take part in forming the next generation, or ask to join."""
        membership: VirtualFuture[Membership] = VirtualFuture("the others' arrival")
        self._arrive(rank, _Arrival(learner, report, make_plan, membership), self.tasks.get(rank))
        return membership

    def _arrive(self, rank: int, arrival: _Arrival, task: VirtualTask[Any] | None) -> None:
        if rank in self._dead or task is not self.tasks.get(rank):
            return
        isolated = self.network.isolated_for(rank)
        if isolated:
            self.loop.call_later(isolated, lambda: self._arrive(rank, arrival, task))
        elif rank in self.alive:
            self._arrivals[rank] = arrival
            if self.generation >= 0 and not self.ended_early:
                self._end_generation(str(arrival.report.get("reason") or "a learner was lost"))
            else:
                self._form_if_complete()
        else:
            self._ask_to_join(rank, arrival)

    def _ask_to_join(self, rank: int, arrival: _Arrival) -> None:
        if self.finished:
            self.loop.call_later(0.0, self.tasks[rank].kill)
            return
        self._ids[rank], self._next_id = self._next_id, self._next_id + 1
        self._arrivals[rank] = arrival._replace(report=as_newcomer(arrival.report))
        self._newcomers.append(rank)
        self._end_newcomers_if_none_alive()
        self._form_if_complete()

    def has_newcomers(self, key: str = "") -> bool:
        """Return whether a newcomer is waiting; all calls with the same ``key`` get the same answer."""
        waits = bool(self._newcomers)
        return self._decisions.setdefault((self.generation, key), waits) if key else waits

    def mark_safe(self, rank: int, numbers: list[int]) -> None:
        """Record that other learners also have these minibatches."""
        self.safe.setdefault(self._ids[rank], []).extend(numbers)

    def _exclude(self, rank: int, reason: str) -> None:
        """Continue without a learner."""
        if rank not in self.alive or self.finished:
            return
        self.alive.remove(rank)
        arrival = self._arrivals.pop(rank, None)
        if arrival is not None:
            self.loop.set_exception(arrival.membership, LearnerLost(reason))
        self._end_newcomers_if_none_alive()
        self._end_generation(reason)

    def _end_newcomers_if_none_alive(self) -> None:
        if not self.alive:
            for rank in self._newcomers:
                self.loop.call_later(0.0, self.tasks[rank].kill)
            self._newcomers = []

    def _end_generation(self, reason: str) -> None:
        self.ended_early, self.end_reason = True, reason
        pending, self.pending = list(self.pending), {}
        for future in pending:
            self.loop.set_exception(future, LearnerLost(reason))
        self._stop_all_serving()
        self._form_if_complete()

    def _stop_all_serving(self) -> None:
        for rank in self.ranks:
            rank.serving = not_serving()

    def _form_if_complete(self) -> None:
        """Form the next generation if all ranks that are alive have arrived."""
        if len(self._arrivals) < len(self.alive) or not self.alive or (self.generation >= 0 and not self.ended_early):
            return
        if any(rank not in self._arrivals for rank in self.alive):
            return
        make_plan = self._arrivals[self.alive[0]].make_plan
        self.alive, self._newcomers = [*self.alive, *self._newcomers], []
        self.generation, self.ended_early, self.network.paused = self.generation + 1, False, False
        here = {self._ids[rank] for rank in self.alive}
        plan = make_plan(
            [self._arrivals[rank].report for rank in self.alive],
            [number for known, numbers in self.safe.items() if known not in here for number in numbers],
        )
        arrivals, self._arrivals = self._arrivals, {}
        self._stop_all_serving()
        self.connect([arrivals[rank].learner for rank in self.alive])
        for index, rank in enumerate(self.alive):
            membership = Membership(self.generation, index, len(self.alive), plan)
            self.loop.set_result(arrivals[rank].membership, membership)

    def connect(self, learners: list[Learner]) -> None:
        """Give the members of a new generation, in rank order, their communicators."""
        raise NotImplementedError

    # -- faults -------------------------------------------------------------------------------------------------

    def _has_ended(self, rank: int) -> bool:
        return rank in self._dead or self.tasks[rank].end.done or self.finished

    def _write(self, kind: str, rank: int, **more: Any) -> None:
        if (self.generation < 0 and self.alive) or self.loop.now == 0.0:  # a resumed run may still rewind the record
            self.loop.call_later(RETRY_SECONDS, lambda: self._write(kind, rank, **more))
        else:
            self.record.write("fault", self.ranks[rank].member, self.loop.now, kind=kind, **more)

    def _kill(self, fault: Fault) -> None:
        rank = self.servers + fault.learner
        if self._has_ended(rank):
            return
        self.fired.append(fault)
        self.tasks[rank].kill()
        self._dead.add(rank)
        if rank in self._newcomers:
            self._newcomers.remove(rank)
        self._arrivals.pop(rank, None)
        self.ranks[rank].serving, self.ranks[rank].deferred = not_serving(), None
        self._write("kill", rank)
        detection = self.cluster.detection_seconds
        self.loop.call_later(detection, lambda: self._exclude_dead(rank))
        if fault.restart_seconds is not None:
            self.loop.call_later(max(detection, fault.restart_seconds), lambda: self._restart(rank))

    def _exclude_dead(self, rank: int) -> None:
        if rank in self._dead:
            self._exclude(rank, f"{self.ranks[rank].member} is lost")

    def _restart(self, rank: int) -> None:
        if rank in self._dead and not self.finished and self.alive:
            self._exclude_dead(rank)
            self._dead.discard(rank)
            self._write("restart", rank)
            self.restart(rank)

    def _stop(self, stop: Stop) -> None:
        rank = self.servers + stop.learner
        if self._has_ended(rank) or self.ranks[rank].deferred is not None:
            return
        self.fired.append(stop)
        task, deferred = self.tasks[rank], list[Callable[[], None]]()
        task.hold()
        self.ranks[rank].deferred = deferred
        self._write("stop", rank, seconds=stop.seconds)
        self.loop.call_later(stop.seconds, lambda: self._continue(rank, task, deferred))
        if stop.seconds > self.cluster.heartbeat_timeout:
            self.loop.call_later(self.cluster.heartbeat_timeout, lambda: self._time_out(rank, task))

    def _continue(self, rank: int, task: VirtualTask[Any], deferred: list[Callable[[], None]]) -> None:
        if task is self.tasks[rank] and rank not in self._dead:
            self.ranks[rank].deferred = None
            self._write("continue", rank)
            task.release()
            for action in deferred:
                self.loop.call_later(0.0, action)

    def _time_out(self, rank: int, task: VirtualTask[Any]) -> None:
        if task is self.tasks[rank] and rank not in self._dead:
            self._exclude(rank, f"{self.ranks[rank].member} has been silent for {self.cluster.heartbeat_timeout:g} s")

    def _isolate(self, partition: NetworkPartition) -> None:
        ranks = [self.servers + learner for learner in partition.learners]
        if all(self._has_ended(rank) for rank in ranks) or any(self.network.isolated_for(rank) for rank in ranks):
            return
        self.fired.append(partition)
        self.network.isolate(ranks, self.loop.now + partition.seconds)
        for rank in ranks:
            self._write("isolate", rank, seconds=partition.seconds)
            if partition.seconds > self.cluster.heartbeat_timeout and rank not in self._dead:
                timed_out = functools.partial(self._time_out, rank, self.tasks[rank])
                self.loop.call_later(self.cluster.heartbeat_timeout, timed_out)

    def _slow_link(self, slow: SlowLink) -> None:
        rank = self.servers + slow.learner
        self.fired.append(slow)
        self.network.slow(rank, slow.factor, slow.end_seconds)
        self._write("slow link", rank, factor=slow.factor)

    def _slow_learner(self, straggler: Straggler) -> None:
        if not self.finished:
            self.fired.append(straggler)
            self._write("slow", self.servers + straggler.learner, factor=straggler.factor)

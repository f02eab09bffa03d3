"""Who is here, in a simulated cluster: membership epochs as on processes, and all that can befall a learner.

A killed learner counts as lost after ``cluster.detection_seconds``, as with a real launcher; one that is stopped or
isolated, after ``cluster.heartbeat_timeout`` without a heartbeat.  It is left out, and asks to join again when it wakes
or the partition ends; so does a restarted learner.  Newcomers are admitted at the next rendezvous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from roundelay.errors import LearnerLost
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import MakePlan, Membership
from roundelay.runtimes.cluster import Cluster, Fault, NetworkPartition, SlowLink, Stop, Straggler
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop, VirtualTask
from roundelay.runtimes.simulator.network import SimulatedNetwork
from roundelay.runtimes.simulator.simulated_communicator import SimulatedRank

__all__ = ["Disturbance", "SimulatedMembership"]

SOON_SECONDS = 1e-3
Disturbance = Fault | Stop | NetworkPartition | SlowLink | Straggler


class SimulatedMembership:
    """The part of a simulation that knows who takes part."""

    def __init__(
        self, kernel: VirtualLoop, cluster: Cluster, seats: list[SimulatedRank], servers: int, record: Record
    ) -> None:
        self.kernel, self.cluster, self.seats, self.servers, self.record = kernel, cluster, seats, servers, record
        self.network: SimulatedNetwork
        self.alive = list(range(len(seats)))  # whom the others count on, in rank order
        self.epoch, self.over, self.reason = -1, False, ""
        self.pending: dict[VirtualFuture[Any], None] = {}  # what an epoch's end has to wake
        self.tasks: dict[int, VirtualTask[Any]] = {}  # by seat: of who sits there now
        self.safe: dict[int, list[int]] = {}  # by id: what was put down as surely trained
        self.fired: list[Disturbance] = []
        self.ended = 0.0  # when the last one finished
        self.finished = False
        self.restart: Callable[[int], None] = lambda seat: None
        self._ids = list(range(len(seats)))  # by seat: one that was given up comes back under another id
        self._next_id = len(seats)
        self._dead: set[int] = set()
        self._asking: list[int] = []  # seats that wait to join
        self._settled: dict[tuple[int, str], bool] = {}
        self._arrivals: dict[int, tuple[Learner, dict[str, Any], MakePlan, VirtualFuture[Membership]]] = {}

    def schedule(self) -> None:
        """Have everything happen to learners that the cluster's description says."""
        cluster = self.cluster
        for fault in cluster.faults:
            self.kernel.after(fault.at_seconds, functools.partial(self._kill, fault))
        for stop in cluster.stops:
            self.kernel.after(stop.at_seconds, functools.partial(self._stop, stop))
        for cut in cluster.partitions:
            self.kernel.after(cut.at_seconds, functools.partial(self._cut, cut))
        for slow in cluster.slow_links:
            self.kernel.after(slow.begin_seconds, functools.partial(self._slow, slow))
        for straggler in cluster.stragglers:
            if straggler.announce:
                self.kernel.after(straggler.begin_seconds, functools.partial(self._announce, straggler))

    def watch_end(self, seat: int, task: VirtualTask[Any]) -> None:
        """Take note when a learner finishes."""
        self.tasks[seat] = task
        task.end.waiting.append(self._one_finished)

    def _one_finished(self) -> None:
        self.ended, self.finished = self.kernel.now, True
        for seat in self._asking:
            self.tasks[seat].kill()
        self._asking = []

    # -- epochs -------------------------------------------------------------------------------------------------

    def arrive(
        self, seat: int, learner: Learner, report: dict[str, Any], resolve: MakePlan
    ) -> VirtualFuture[Membership]:
        """Take part in forming the next membership epoch, or ask to join."""
        event: VirtualFuture[Membership] = VirtualFuture("the others' arrival")
        self._come(seat, (learner, report, resolve, event), self.tasks.get(seat))
        return event

    def _come(
        self,
        seat: int,
        arrival: tuple[Learner, dict[str, Any], MakePlan, VirtualFuture[Membership]],
        task: VirtualTask[Any] | None,
    ) -> None:
        if seat in self._dead or task is not self.tasks.get(seat):
            return
        cut = self.network.cut_for(seat)
        if cut:
            self.kernel.after(cut, lambda: self._come(seat, arrival, task))
        elif seat in self.alive:
            self._arrivals[seat] = arrival
            if self.epoch >= 0 and not self.over:
                self._end_epoch(str(arrival[1].get("reason") or "a learner was lost"))
            else:
                self._form_if_all_here()
        else:
            self._ask(seat, arrival)

    def _ask(self, seat: int, arrival: tuple[Learner, dict[str, Any], MakePlan, VirtualFuture[Membership]]) -> None:
        if self.finished:
            self.kernel.after(0.0, self.tasks[seat].kill)  # the others have finished
            return
        learner, report, resolve, event = arrival
        self._ids[seat], self._next_id = self._next_id, self._next_id + 1
        self._arrivals[seat] = (learner, {**report, "holds": False, "trained": [], "left": []}, resolve, event)
        self._asking.append(seat)
        self._give_up_if_nobody_is_left()
        self._form_if_all_here()

    def newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join; all who ask by the same ``key`` are told the same."""
        waits = bool(self._asking)
        return self._settled.setdefault((self.epoch, key), waits) if key else waits

    def trained(self, seat: int, numbers: list[int]) -> None:
        """Put down what is surely trained."""
        self.safe.setdefault(self._ids[seat], []).extend(numbers)

    def _lose(self, seat: int, reason: str) -> None:
        """Count on a learner no more."""
        if seat not in self.alive or self.finished:
            return
        self.alive.remove(seat)
        arrival = self._arrivals.pop(seat, None)
        if arrival is not None:
            self.kernel.fail(arrival[3], LearnerLost(reason))
        self._give_up_if_nobody_is_left()
        self._end_epoch(reason)

    def _give_up_if_nobody_is_left(self) -> None:
        if not self.alive:
            for seat in self._asking:
                self.kernel.after(0.0, self.tasks[seat].kill)
            self._asking = []

    def _end_epoch(self, reason: str) -> None:
        self.over, self.reason = True, reason
        pending, self.pending = list(self.pending), {}
        for event in pending:
            self.kernel.fail(event, LearnerLost(reason))
        self._close_seats()
        self._form_if_all_here()

    def _close_seats(self) -> None:
        for seat in self.seats:
            seat.opened = VirtualFuture("a learner that serves")

    def _form_if_all_here(self) -> None:
        if len(self._arrivals) < len(self.alive) or not self.alive or (self.epoch >= 0 and not self.over):
            return
        if any(seat not in self._arrivals for seat in self.alive):
            return
        resolve = self._arrivals[self.alive[0]][2]
        self.alive, self._asking = [*self.alive, *self._asking], []
        self.epoch, self.over, self.network.still = self.epoch + 1, False, False
        here = {self._ids[seat] for seat in self.alive}
        plan = resolve(
            [self._arrivals[seat][1] for seat in self.alive],
            [number for known, numbers in self.safe.items() if known not in here for number in numbers],
        )
        arrivals, self._arrivals = self._arrivals, {}
        self._close_seats()
        self.connect([arrivals[seat][0] for seat in self.alive])
        for rank, seat in enumerate(self.alive):
            self.kernel.happen(arrivals[seat][3], Membership(self.epoch, rank, len(self.alive), plan))

    def connect(self, everyone: list[Learner]) -> None:
        """Give the members of a new epoch, in rank order, their communicators."""
        raise NotImplementedError

    # -- what befalls learners ----------------------------------------------------------------------------------

    def _gone(self, seat: int) -> bool:
        return seat in self._dead or self.tasks[seat].end.done or self.finished

    def _write(self, what: str, seat: int, **more: Any) -> None:
        if (
            self.epoch < 0 and self.alive
        ) or self.kernel.now == 0.0:  # the first to be here may yet begin the record anew
            self.kernel.after(SOON_SECONDS, lambda: self._write(what, seat, **more))
        else:
            self.record.write("fault", self.seats[seat].member, self.kernel.now, kind=what, **more)

    def _kill(self, fault: Fault) -> None:
        seat = self.servers + fault.learner
        if self._gone(seat):
            return
        self.fired.append(fault)
        self.tasks[seat].kill()
        self._dead.add(seat)
        if seat in self._asking:
            self._asking.remove(seat)
        self._arrivals.pop(seat, None)
        self.seats[seat].opened, self.seats[seat].held = VirtualFuture("a learner that serves"), None
        self._write("kill", seat)
        reason = f"{self.seats[seat].member} is lost"
        self.kernel.after(self.cluster.detection_seconds, lambda: self._lose_dead(seat, reason))
        if fault.restart_seconds is not None:
            self.kernel.after(
                max(self.cluster.detection_seconds, fault.restart_seconds), lambda: self._start_again(seat)
            )

    def _lose_dead(self, seat: int, reason: str) -> None:
        if seat in self._dead:
            self._lose(seat, reason)

    def _start_again(self, seat: int) -> None:
        if seat in self._dead and not self.finished and self.alive:
            self._lose(seat, f"{self.seats[seat].member} is lost")
            self._dead.discard(seat)
            self._write("restart", seat)
            self.restart(seat)

    def _stop(self, stop: Stop) -> None:
        seat = self.servers + stop.learner
        if self._gone(seat) or self.seats[seat].held is not None:
            return
        self.fired.append(stop)
        task, held = self.tasks[seat], list[Callable[[], None]]()
        task.hold()
        self.seats[seat].held = held
        self._write("stop", seat, seconds=stop.seconds)
        self.kernel.after(stop.seconds, lambda: self._wake(seat, task, held))
        if stop.seconds > self.cluster.heartbeat_timeout:
            self.kernel.after(self.cluster.heartbeat_timeout, lambda: self._miss(seat, task))

    def _wake(self, seat: int, task: VirtualTask[Any], held: list[Callable[[], None]]) -> None:
        if task is self.tasks[seat] and seat not in self._dead:
            self.seats[seat].held = None
            self._write("continue", seat)
            task.release()
            for action in held:
                self.kernel.after(0.0, action)

    def _miss(self, seat: int, task: VirtualTask[Any]) -> None:
        if task is self.tasks[seat] and seat not in self._dead:
            self._lose(seat, f"{self.seats[seat].member} has been silent for {self.cluster.heartbeat_timeout:g} s")

    def _cut(self, cut: NetworkPartition) -> None:
        seats = [self.servers + learner for learner in cut.learners]
        if all(self._gone(seat) for seat in seats) or any(self.network.cut_for(seat) for seat in seats):
            return
        self.fired.append(cut)
        self.network.cut(seats, self.kernel.now + cut.seconds)
        for seat in seats:
            self._write("isolate", seat, seconds=cut.seconds)
            if cut.seconds > self.cluster.heartbeat_timeout and seat not in self._dead:
                missed = functools.partial(self._miss, seat, self.tasks[seat])
                self.kernel.after(self.cluster.heartbeat_timeout, missed)

    def _slow(self, slow: SlowLink) -> None:
        seat = self.servers + slow.learner
        self.fired.append(slow)
        self.network.slow(seat, slow.factor, slow.end_seconds)
        self._write("slow link", seat, factor=slow.factor)

    def _announce(self, straggler: Straggler) -> None:
        if not self.finished:
            self.fired.append(straggler)
            self._write("slow", self.servers + straggler.learner, factor=straggler.factor)

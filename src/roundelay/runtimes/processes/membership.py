"""Who is here: membership epochs that learners agree on in a store, without a leader.

Keys of the store (an id is a learner's for as long as it is a member; one that was given up comes back under another):

=====================  ==============================================================================================
``beat/<id>``          a counter that its heartbeat advances
``dead/<id>``          an obituary, by the launcher that saw the process end
``done/<id>``          it has finished; its end is not a loss
``here/<epoch>/<id>``  it wants to be in that epoch: its report
``view/<epoch>``       who is in that epoch, and the plan: set once, the first one wins
``ready/<epoch>/<id>`` it has read the view: how to reach it
``over/<epoch>``       why that epoch ended
``poke/<epoch>/<id>``  wakes its watcher when the epoch is over
``safe/<id>``          the minibatches that it put down as safe, a log
``asking``             a log of newcomers, a line each: id and report
``name/<id>``          the id by which the process that began as <id> goes now
``welcome/<epoch>/…``  whether all who ask at that point are to meet and let newcomers in: the first to ask settles it
``finished``           somebody has finished; newcomers are not let in any more
=====================  ==============================================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.errors import CommunicationError
from roundelay.runtime import MakePlan
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, torch_message

__all__ = ["GenerationAgreement", "MembershipProtocol", "RunFinished", "current_id", "latest_members", "report_death"]

POLL_SECONDS = 0.002
JOIN_SECONDS = 2.0
MAX_KEPT_DECISIONS = 100
logger = logging.getLogger(__name__)


class RunFinished(CommunicationError):
    """We asked to join, and the others have finished."""


@dataclass(frozen=True)
class GenerationAgreement:
    """An epoch that all its members have agreed on and are ready for."""

    generation: int
    members: list[int]
    plan: dict[str, Any]
    endpoints: list[dict[str, Any]]
    """How to reach each member."""


class MembershipProtocol:
    """One learner's part in the protocol."""

    def __init__(
        self, store: KeyValueStore, initial_rank: int, size: int, *, heartbeat_timeout: float, newcomer: bool = False
    ) -> None:
        self.store, self.id, self.heartbeat_timeout = store, initial_rank, heartbeat_timeout
        self._is_newcomer = newcomer  # whether we come when the others have begun
        self._initial_rank = initial_rank  # the launcher's for this process, for good
        self.generation, self.members = -1, list(range(size))
        self.num_handled = 0  # how many newcomers have been let in or given up
        self._heartbeat = Heartbeat(
            store.clone(), initial_rank, heartbeat_timeout, on_silence=self._silent, on_store_gone=self._store_gone
        )
        self._heartbeat.start()
        self._watcher: threading.Thread | None = None
        self._on_end: Callable[[str], None] | None = None
        self._watched_generation = -1
        self._decisions: deque[str] = deque()

    # -- agreeing -----------------------------------------------------------------------------------------------

    def agree(self, report: dict[str, Any], make_plan: MakePlan, endpoint: dict[str, Any]) -> GenerationAgreement:
        """Agree on the next epoch; whoever is lost meanwhile just makes it the one after."""
        while True:
            epoch, view = self.generation + 1, None
            if not self._is_newcomer:
                self.store.set(f"here/{epoch}/{self.id}", report)
                view = self._propose(epoch, make_plan)
            if view is None or self.id not in view["members"]:
                self._is_newcomer, report = False, {**report, "holds": False, "trained": [], "left": []}
                epoch, view = self._join(epoch, report)
            self.generation, self.members, self.num_handled = epoch, view["members"], view["asked"]
            cards = self._await_ready(epoch, endpoint)
            if cards is not None:
                return GenerationAgreement(epoch, self.members, view["plan"], cards)

    def _propose(self, generation: int, make_plan: MakePlan) -> dict[str, Any]:
        waiting = set(self.members) - {self.id}
        self._heartbeat.watch(waiting)
        while waiting and not self.store.has(f"view/{generation}"):
            waiting = {i for i in waiting if not self.store.has(f"here/{generation}/{i}") and not self._is_lost(i)}
            if waiting:
                time.sleep(POLL_SECONDS)
        view: dict[str, Any] | None = self.store.get(f"view/{generation}")
        if view is None:
            view = self.store.setdefault(f"view/{generation}", self._draft(generation, make_plan))
        return view

    def _draft(self, generation: int, make_plan: MakePlan) -> dict[str, Any]:
        reports = {i: self.store.get(f"here/{generation}/{i}") for i in self.members}
        here = {i: report for i, report in reports.items() if report is not None and not self._is_lost(i)}
        asking = self.store.log("asking").splitlines()
        for newcomer in map(json.loads, asking[self.num_handled :]):
            if not self._is_lost(newcomer["id"]):
                here[newcomer["id"]] = newcomer["report"]
        ever = range(self.store.add("ids", 0))
        safe = [number for i in ever if i not in here for number in self.safe(i)]
        plan = make_plan(list(here.values()), safe)
        return {"members": list(here), "plan": plan, "asked": len(asking)}

    def _join(self, generation: int, report: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ask to be let in under a new id, and wait for an epoch that we are in."""
        self.id = self.store.add("ids", 1) - 1
        self.store.add(f"beat/{self.id}", 1)  # from now on our silence tells
        self._heartbeat.rename(self.id)  # whose connection may take longer to recover from a cut than ours did
        self.store.set(f"name/{self._initial_rank}", self.id)
        logger.info("asking to join as %d", self.id)
        self.store.append("asking", json.dumps({"id": self.id, "report": report}) + "\n")
        members = set(self.members)
        while True:
            view = self.store.get(f"view/{generation}")
            if view is not None:
                if self.id in view["members"]:
                    return generation, view
                generation, members = generation + 1, set(view["members"])
                self._heartbeat.watch(members)
                continue
            if self.store.has("finished"):
                raise RunFinished("the others have finished")
            if all(self._is_lost(i) for i in members):
                raise CommunicationError("nobody is left who holds the model")
            time.sleep(5 * POLL_SECONDS)

    def _await_ready(self, generation: int, endpoint: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Wait until all members are ready; ``None``: one was lost, this epoch never began."""
        self.store.set(f"ready/{generation}/{self.id}", endpoint)
        self._heartbeat.watch(set(self.members) - {self.id})
        cards: dict[int, Any] = {self.id: endpoint}
        while len(cards) < len(self.members):
            for i in self.members:
                if i not in cards and (theirs := self.store.get(f"ready/{generation}/{i}")) is not None:
                    cards[i] = theirs
            missing = [i for i in self.members if i not in cards]
            if any(self._is_lost(i) for i in missing) or (missing and self.store.has(f"over/{generation}")):
                announce_end(self.store, generation, self.members, f"learner {missing[0]} never came")
                return None
            if missing:
                time.sleep(POLL_SECONDS)
        return [cards[i] for i in self.members]

    def _is_lost(self, member: int) -> bool:
        return self.store.has(f"dead/{member}") or self.store.has(f"done/{member}") or self._heartbeat.is_silent(member)

    # -- during an epoch ----------------------------------------------------------------------------------------

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Have ``over`` called, from another thread, when the epoch is."""
        self._on_end, self._watched_generation = on_end, self.generation
        arguments = (self.store.clone(), self.generation, self.id, on_end)
        self._watcher = threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True)
        self._watcher.start()
        for i in self.members:
            if i != self.id and self.store.has(f"dead/{i}"):
                self.end(f"learner {i} is dead")

    def _watch(self, store: KeyValueStore, generation: int, learner: int, on_end: Callable[[str], None]) -> None:
        try:
            store.wait(f"poke/{generation}/{learner}")
            reason = store.get(f"over/{generation}")
        except StoreGone as error:
            reason = f"the store is gone: {error}"
        if reason is not None:
            on_end(reason)

    def end(self, reason: str, store: KeyValueStore | None = None) -> None:
        """Say that this epoch is over; wakes everybody."""
        announce_end(store or self.store, self.generation, self.members, reason)

    def _silent(self, learner: int, store: KeyValueStore) -> None:
        if self._watched_generation == self.generation and learner in self.members:
            self.end(f"learner {learner} has been silent for {self.heartbeat_timeout:g} s", store)

    def _store_gone(self, reason: str) -> None:
        if self._on_end is not None:
            self._on_end(reason)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Put down minibatches as safe."""
        if numbers:
            self.store.append(f"safe/{self.id}", "".join(f"{number} " for number in numbers))

    def safe(self, learner: int) -> list[int]:
        """Return what a learner put down as safe."""
        return [int(number) for number in self.store.log(f"safe/{learner}").split()]

    def has_newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join; all of this epoch who ask by the same ``key`` are told the same."""
        if key:
            name = f"welcome/{self.generation}/{key}"
            settled: bool = self.store.setdefault(name, self.has_newcomers())
            self._decisions.append(name)
            if len(self._decisions) > MAX_KEPT_DECISIONS:  # nobody is that far behind
                self.store.delete(self._decisions.popleft())
            return settled
        return self.store.log("asking").count("\n") > self.num_handled

    def leave(self) -> None:
        """Say that we have finished, and stay reachable until all others have, too."""
        deadline = time.monotonic() + self.heartbeat_timeout
        waiting = set(self.members) - {self.id}
        with contextlib.suppress(StoreGone):  # its keeper was the last to wait for us
            self.store.set("finished", True)
            self.store.set(f"done/{self.id}", True)
            while waiting and time.monotonic() < deadline and not self.store.has(f"over/{self.generation}"):
                waiting = {i for i in waiting if not self._is_lost(i)}
                if waiting:
                    time.sleep(POLL_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End our threads; again is harmless."""
        if not self._heartbeat.stopped:
            self._heartbeat.stop()
            with contextlib.suppress(StoreGone):
                self.store.set(f"poke/{self.generation}/{self.id}", True)
            for thread in (self._heartbeat, self._watcher):  # one inside torch when Python ends would take us down
                if thread is not None:
                    thread.join(timeout=JOIN_SECONDS)


class Heartbeat(threading.Thread):
    """Advances our counter and watches others': one that has moved before and stands still for long is silent.

    What counts is the time that we have watched it stand still: after a sleep of our own, or of our connection to the
    store, everybody would seem to have been silent.
    """

    def __init__(
        self,
        store: KeyValueStore,
        learner: int,
        heartbeat_timeout: float,
        *,
        on_silence: Callable[[int, KeyValueStore], None],
        on_store_gone: Callable[[str], None],
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self._store, self._id, self._timeout = store, learner, heartbeat_timeout
        self._on_silence, self._on_store_gone = on_silence, on_store_gone
        self._interval = min(1.0, heartbeat_timeout / 10)
        self._watching: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}  # the counter, and for how long it has stood still
        self._last_check = time.monotonic()
        self._stopped = threading.Event()
        self._beaten = threading.Event()
        self._lock = threading.Lock()

    def rename(self, learner: int) -> None:
        """Go on under another id; return once it has beaten."""
        self._beaten.clear()
        self._id = learner
        while self.is_alive() and not self._beaten.wait(self._interval):
            pass

    def watch(self, learners: set[int]) -> None:
        """Watch these."""
        with self._lock:
            self._watching = set(learners)

    def is_silent(self, learner: int) -> bool:
        """Tell whether a learner's counter has stood still for too long."""
        seen = self._seen.get(learner)
        return seen is not None and seen[1] > self._timeout

    @property
    def stopped(self) -> bool:
        """Whether the heartbeat has ended."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the heartbeat."""
        self._stopped.set()

    def run(self) -> None:
        """Beat until stopped."""
        try:
            while not self._stopped.wait(self._interval):
                beating = self._id
                self._store.add(f"beat/{beating}", 1)
                if beating == self._id:
                    self._beaten.set()
                self._check_others()
        except StoreGone as error:
            if not self._stopped.is_set():
                self._on_store_gone(f"the store is gone: {torch_message(error)}")

    def _check_others(self) -> None:
        with self._lock:
            watching = sorted(self._watching)
        now = time.monotonic()
        watched, self._last_check = min(now - self._last_check, self._timeout / 2), now
        for learner in watching:
            beat, (before, still) = self._store.add(f"beat/{learner}", 0), self._seen.get(learner, (0, 0.0))
            if beat:
                self._seen[learner] = (beat, still + watched if beat == before else 0.0)
            if self.is_silent(learner) and not self._store.has(f"done/{learner}"):
                self._on_silence(learner, self._store)


def announce_end(store: KeyValueStore, generation: int, members: Sequence[int], reason: str) -> None:
    """Write that an epoch is over, for the first reason given, and wake its members."""
    if not store.has(f"over/{generation}"):
        store.setdefault(f"over/{generation}", reason)
        for member in members:
            store.set(f"poke/{generation}/{member}", True)


def latest_members(store: KeyValueStore) -> tuple[int, list[int]] | None:
    """Return the newest epoch and its members."""
    epoch = 0
    while store.has(f"view/{epoch + 1}"):
        epoch += 1
    view = store.get(f"view/{epoch}")
    return (epoch, view["members"]) if view is not None else None


def current_id(store: KeyValueStore, learner: int) -> int:
    """Return the id by which the process that began as ``learner`` goes now."""
    renamed = store.get(f"name/{learner}")
    return learner if renamed is None else int(renamed)


def report_death(store: KeyValueStore, learner: int, reason: str) -> None:
    """Write the obituary of the process that began as ``learner``; by the launcher that saw it end."""
    learner = current_id(store, learner)
    store.set(f"dead/{learner}", reason)
    newest = latest_members(store)
    if newest is not None and learner in newest[1]:
        announce_end(store, *newest, reason)

"""Membership of real processes: generations that learners agree on in a store, without a leader.

Keys of the store (a learner has an id while it is a member; if it was excluded, it rejoins under a new one):

===========================  ========================================================================================
``beat/<id>``                a counter that its heartbeat advances
``dead/<id>``                the reason of its death, written by its launcher
``done/<id>``                it has finished; its end is not a loss
``report/<generation>/<id>`` its report: it wants to be in that generation
``members/<generation>``     the members and the plan; the first one to write it decides
``ready/<generation>/<id>``  how to reach it; it has read the members
``end/<generation>``         the reason why that generation ended
``wake/<generation>/<id>``   wakes its watcher when the generation has ended
``safe/<id>``                a log of its safe minibatches
``newcomers``                a log of ranks that ask to join, one line each: id and report
``id/<initial rank>``        the current id of that process
``admit/<generation>/<key>`` whether to admit newcomers there; the first one to ask decides
``finished``                 a learner has finished; newcomers are no longer admitted
===========================  ========================================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.errors import CommunicationError
from roundelay.runtime import MakePlan, as_newcomer
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, torch_message

POLL_SECONDS = 0.002
JOIN_SECONDS = 2.0
MAX_KEPT_DECISIONS = 100
logger = logging.getLogger(__name__)


class RunFinished(CommunicationError):
    """We asked to join, and the others have finished."""


@dataclass(frozen=True)
class GenerationAgreement:
    """A generation that all its members have agreed on and are ready for."""

    generation: int
    members: list[int]
    plan: dict[str, Any]
    endpoints: list[dict[str, Any]]
    """How to reach each member."""


class MembershipProtocol:
    """One learner's part in the protocol."""

    def __init__(
        self,
        store: KeyValueStore,
        initial_rank: int,
        size: int,
        *,
        heartbeat_timeout: float,
        newcomer: bool = False,
        has_ended: Callable[[int], bool] | None = None,
    ) -> None:
        self.store, self.id, self.heartbeat_timeout = store, initial_rank, heartbeat_timeout
        self._is_newcomer = newcomer  # whether the others have begun without us
        self._initial_rank = initial_rank  # which the launcher knows this process by
        self.generation, self.members = -1, list(range(size))
        self.num_handled = 0  # number of newcomers that were admitted or lost
        store.add(
            f"beat/{initial_rank}", 1
        )  # from now on our silence counts: we may be lost before the first heartbeat
        self._heartbeat = Heartbeat(
            store.clone(), initial_rank, heartbeat_timeout, on_silence=self._silent, on_store_gone=self._store_gone
        )
        self._heartbeat.has_ended = has_ended
        self._heartbeat.start()
        self._watcher: threading.Thread | None = None
        self._on_end: Callable[[str], None] | None = None
        self._watched_generation = -1
        self._decisions: deque[str] = deque()

    # -- agreeing -----------------------------------------------------------------------------------------------

    def agree(self, report: dict[str, Any], make_plan: MakePlan, endpoint: dict[str, Any]) -> GenerationAgreement:
        """Agree on the next generation; if a member is lost meanwhile, on the one after."""
        while True:
            generation, decided = self.generation + 1, None
            if not self._is_newcomer:
                self.store.set(f"report/{generation}/{self.id}", report)
                decided = self._propose(generation, make_plan)
            if decided is None or self.id not in decided["members"]:
                self._is_newcomer, report = False, as_newcomer(report)
                generation, decided = self._join(generation, report)
            self.generation, self.members, self.num_handled = generation, decided["members"], decided["handled"]
            endpoints = self._await_ready(generation, endpoint)
            if endpoints is not None:
                return GenerationAgreement(generation, self.members, decided["plan"], endpoints)

    def _propose(self, generation: int, make_plan: MakePlan) -> dict[str, Any]:
        waiting = set(self.members) - {self.id}
        self._heartbeat.watch(waiting)
        while waiting and not self.store.has(f"members/{generation}"):
            signs = {i: [f"report/{generation}/{i}", f"dead/{i}", f"done/{i}"] for i in waiting}
            there = self.store.present([key for keys in signs.values() for key in keys])
            waiting = {i for i in waiting if there.isdisjoint(signs[i]) and not self._heartbeat.is_silent(i)}
            if waiting:
                time.sleep(POLL_SECONDS)
        decided: dict[str, Any] | None = self.store.get(f"members/{generation}")
        if decided is None:
            decided = self.store.setdefault(f"members/{generation}", self._draft(generation, make_plan))
        return decided

    def _draft(self, generation: int, make_plan: MakePlan) -> dict[str, Any]:
        reports = {i: self.store.get(f"report/{generation}/{i}") for i in self.members}
        here = {i: report for i, report in reports.items() if report is not None and not self._is_lost(i)}
        newcomers = self.store.log("newcomers").splitlines()
        for newcomer in map(json.loads, newcomers[self.num_handled :]):
            if not self._is_lost(newcomer["id"]):
                here[newcomer["id"]] = newcomer["report"]
        all_ids = range(self.store.add("ids", 0))
        safe = [number for i in all_ids if i not in here for number in self.safe(i)]
        plan = make_plan(list(here.values()), safe)
        return {"members": list(here), "plan": plan, "handled": len(newcomers)}

    def _join(self, generation: int, report: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ask to join under a new id, and wait for a generation that we are in."""
        self.id = self.store.add("ids", 1) - 1
        self.store.add(f"beat/{self.id}", 1)  # from now on our silence counts
        self._heartbeat.rename(self.id)  # its connection may recover later from a partition than ours
        self.store.set(f"id/{self._initial_rank}", self.id)
        logger.info("asking to join as %d", self.id)
        self.store.append("newcomers", json.dumps({"id": self.id, "report": report}) + "\n")
        members = set(self.members)
        while True:
            decided = self.store.get(f"members/{generation}")
            if decided is not None:
                if self.id in decided["members"]:
                    return generation, decided
                generation, members = generation + 1, set(decided["members"])
                self._heartbeat.watch(members)
                continue
            if self.store.has("finished"):
                raise RunFinished("the others have finished")
            if all(self._is_lost(i) for i in members):
                raise CommunicationError("no learner is left that has the model")
            time.sleep(5 * POLL_SECONDS)

    def _await_ready(self, generation: int, endpoint: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Wait until all members are ready; return ``None`` if one was lost and this generation never began."""
        self.store.set(f"ready/{generation}/{self.id}", endpoint)
        self._heartbeat.watch(set(self.members) - {self.id})
        endpoints: dict[int, Any] = {self.id: endpoint}
        while len(endpoints) < len(self.members):
            for i in self.members:
                if i not in endpoints and (theirs := self.store.get(f"ready/{generation}/{i}")) is not None:
                    endpoints[i] = theirs
            missing = [i for i in self.members if i not in endpoints]
            if any(self._is_lost(i) for i in missing) or (missing and self.store.has(f"end/{generation}")):
                announce_end(self.store, generation, self.members, f"learner {missing[0]} did not come")
                return None
            if missing:
                time.sleep(POLL_SECONDS)
        return [endpoints[i] for i in self.members]

    def _is_lost(self, member: int) -> bool:
        return self.store.has(f"dead/{member}") or self.store.has(f"done/{member}") or self._heartbeat.is_silent(member)

    # -- during a generation ------------------------------------------------------------------------------------

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call ``on_end`` with the reason, from another thread, when this generation ends."""
        self._on_end, self._watched_generation = on_end, self.generation
        arguments = (self.store.clone(), self.generation, self.id, on_end)
        self._watcher = threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True)
        self._watcher.start()
        for i in self.members:
            if i != self.id and self.store.has(f"dead/{i}"):
                self.end(f"learner {i} is dead")

    def _watch(self, store: KeyValueStore, generation: int, learner: int, on_end: Callable[[str], None]) -> None:
        try:
            store.wait(f"wake/{generation}/{learner}")
            reason = store.get(f"end/{generation}")
        except StoreGone as error:
            reason = f"the store is gone: {error}"
        if reason is not None:
            on_end(reason)

    def end(self, reason: str, store: KeyValueStore | None = None) -> None:
        """End this generation; wake all members."""
        announce_end(store or self.store, self.generation, self.members, reason)

    def _silent(self, learner: int, store: KeyValueStore) -> None:
        if self._watched_generation == self.generation and learner in self.members:
            self.end(f"learner {learner} has been silent for {self.heartbeat_timeout:g} s", store)

    def _store_gone(self, reason: str) -> None:
        if self._on_end is not None:
            self._on_end(reason)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Record that other learners also have these minibatches."""
        if numbers:
            self.store.append(f"safe/{self.id}", "".join(f"{number} " for number in numbers))

    def safe(self, learner: int) -> list[int]:
        """Return a learner's safe minibatches."""
        return [int(number) for number in self.store.log(f"safe/{learner}").split()]

    def has_newcomers(self, key: str = "") -> bool:
        """Return whether a newcomer is waiting; all members that pass the same ``key`` get the same answer."""
        if key:
            name = f"admit/{self.generation}/{key}"
            decision: bool = self.store.setdefault(name, self.has_newcomers())
            self._decisions.append(name)
            if len(self._decisions) > MAX_KEPT_DECISIONS:  # no member is that far behind
                self.store.delete(self._decisions.popleft())
            return decision
        return self.store.log("newcomers").count("\n") > self.num_handled

    def leave(self) -> None:
        """Announce that we have finished, and stay reachable until all others have."""
        deadline = time.monotonic() + self.heartbeat_timeout
        waiting = set(self.members) - {self.id}
        with contextlib.suppress(StoreGone):  # the process that hosts it has ended, so all have finished
            self.store.set("finished", True)
            self.store.set(f"done/{self.id}", True)
            while waiting and time.monotonic() < deadline and not self.store.has(f"end/{self.generation}"):
                waiting = {i for i in waiting if not self._is_lost(i)}
                if waiting:
                    time.sleep(POLL_SECONDS)
        self.stop()

    def await_others(self, seconds: float) -> None:
        """Wait, but not for longer than so many seconds, until all others have finished or are lost."""
        deadline = time.monotonic() + seconds
        while any(i != self.id and not self._is_lost(i) for i in self.members) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End our threads; may be called again."""
        if not self._heartbeat.stopped:
            self._heartbeat.stop()
            with contextlib.suppress(StoreGone):
                if not self.store.has(f"done/{self.id}"):  # our process ends now, before the run does
                    reason = f"learner {self.id} ended before the run was finished"
                    self.store.set(f"dead/{self.id}", reason)
                    announce_end(self.store, self.generation, self.members, reason)
                self.store.set(f"wake/{self.generation}/{self.id}", True)
            for thread in (
                self._heartbeat,
                self._watcher,
            ):  # one inside torch when Python ends crashes the process
                if thread is not None:
                    thread.join(timeout=JOIN_SECONDS)


class Heartbeat(threading.Thread):
    """Advances our counter and watches those of others: one that has moved and then stops for too long is silent.

    Only the time in which we have watched counts: after a pause of this process, or of its connection to the store, all
    others would seem silent.
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
        super().__init__(name="heartbeat", daemon=True)
        self._store, self._id, self._timeout = store, learner, heartbeat_timeout
        self._on_silence, self._on_store_gone = on_silence, on_store_gone
        self._interval = min(1.0, heartbeat_timeout / 10)
        self.has_ended: Callable[[int], bool] | None = None
        """Whether a learner's process is known to have ended, even before its first beat."""
        self._watching: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}  # the counter, and the seconds since it moved
        self._last_check = time.monotonic()
        self._stopped = threading.Event()
        self._beaten = threading.Event()
        self._lock = threading.Lock()

    def rename(self, learner: int) -> None:
        """Continue under another id; return after its first beat."""
        self._beaten.clear()
        self._id = learner
        while self.is_alive() and not self._beaten.wait(self._interval):
            pass

    def watch(self, learners: set[int]) -> None:
        """Watch these members."""
        with self._lock:
            self._watching = set(learners)

    def is_silent(self, learner: int) -> bool:
        """Return whether a member's counter has stopped for too long."""
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
            if self.has_ended is not None and self.has_ended(learner):
                self._seen[learner] = (beat, math.inf)
            if self.is_silent(learner) and not self._store.has(f"done/{learner}"):
                self._on_silence(learner, self._store)


def announce_end(store: KeyValueStore, generation: int, members: Sequence[int], reason: str) -> None:
    """Write the reason why a generation has ended, unless there is one, and wake its members."""
    if not store.has(f"end/{generation}"):
        store.setdefault(f"end/{generation}", reason)
        for member in members:
            store.set(f"wake/{generation}/{member}", True)


def latest_members(store: KeyValueStore) -> tuple[int, list[int]] | None:
    """Return the newest generation and its members."""
    generation = 0
    while store.has(f"members/{generation + 1}"):
        generation += 1
    decided = store.get(f"members/{generation}")
    return (generation, decided["members"]) if decided is not None else None


def current_id(store: KeyValueStore, learner: int) -> int:
    """Return the current id of the process that began as ``learner``."""
    renamed = store.get(f"id/{learner}")
    return learner if renamed is None else int(renamed)


def report_death(store: KeyValueStore, learner: int, reason: str) -> None:
    """Report that the process that began as ``learner`` has died; called by its launcher."""
    learner = current_id(store, learner)
    store.set(f"dead/{learner}", reason)
    newest = latest_members(store)
    if newest is not None and learner in newest[1]:
        announce_end(store, *newest, reason)

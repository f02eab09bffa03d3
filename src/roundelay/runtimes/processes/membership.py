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
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, reason

__all__ = ["GenerationAgreement", "MembershipProtocol", "RunFinished", "bury", "current_id", "latest_view"]

POLL_SECONDS = 0.002
JOIN_SECONDS = 2.0
KEPT = 100
logger = logging.getLogger(__name__)


class RunFinished(CommunicationError):
    """We asked to join, and the others have finished."""


@dataclass(frozen=True)
class GenerationAgreement:
    """An epoch that all its members have agreed on and are ready for."""

    epoch: int
    members: list[int]
    plan: dict[str, Any]
    cards: list[dict[str, Any]]
    """How to reach each member."""


class MembershipProtocol:
    """One learner's part in the protocol."""

    def __init__(
        self, store: KeyValueStore, learner: int, size: int, *, heartbeat_timeout: float, joins: bool = False
    ) -> None:
        self.store, self.id, self.patience = store, learner, heartbeat_timeout
        self._joins = joins  # whether we come when the others have begun
        self._name = learner  # the launcher's for this process, for good
        self.epoch, self.members = -1, list(range(size))
        self.asked = 0  # how many newcomers have been let in or given up
        self._pulse = Heartbeat(store.clone(), learner, heartbeat_timeout, silent=self._silent, gone=self._store_gone)
        self._pulse.start()
        self._watcher: threading.Thread | None = None
        self._over: Callable[[str], None] | None = None
        self._watched = -1
        self._settled: deque[str] = deque()

    # -- agreeing -----------------------------------------------------------------------------------------------

    def agree(self, report: dict[str, Any], resolve: MakePlan, card: dict[str, Any]) -> GenerationAgreement:
        """Agree on the next epoch; whoever is lost meanwhile just makes it the one after."""
        while True:
            epoch, view = self.epoch + 1, None
            if not self._joins:
                self.store.set(f"here/{epoch}/{self.id}", report)
                view = self._propose(epoch, resolve)
            if view is None or self.id not in view["members"]:
                self._joins, report = False, {**report, "holds": False, "trained": [], "left": []}
                epoch, view = self._join(epoch, report)
            self.epoch, self.members, self.asked = epoch, view["members"], view["asked"]
            cards = self._meet(epoch, card)
            if cards is not None:
                return GenerationAgreement(epoch, self.members, view["plan"], cards)

    def _propose(self, epoch: int, resolve: MakePlan) -> dict[str, Any]:
        waiting = set(self.members) - {self.id}
        self._pulse.watch(waiting)
        while waiting and not self.store.has(f"view/{epoch}"):
            waiting = {i for i in waiting if not self.store.has(f"here/{epoch}/{i}") and not self._lost(i)}
            if waiting:
                time.sleep(POLL_SECONDS)
        view: dict[str, Any] | None = self.store.get(f"view/{epoch}")
        if view is None:
            view = self.store.settle(f"view/{epoch}", self._draft(epoch, resolve))
        return view

    def _draft(self, epoch: int, resolve: MakePlan) -> dict[str, Any]:
        reports = {i: self.store.get(f"here/{epoch}/{i}") for i in self.members}
        here = {i: report for i, report in reports.items() if report is not None and not self._lost(i)}
        asking = self.store.log("asking").splitlines()
        for newcomer in map(json.loads, asking[self.asked :]):
            if not self._lost(newcomer["id"]):
                here[newcomer["id"]] = newcomer["report"]
        ever = range(self.store.add("ids", 0))
        safe = [number for i in ever if i not in here for number in self.safe(i)]
        plan = resolve(list(here.values()), safe)
        return {"members": list(here), "plan": plan, "asked": len(asking)}

    def _join(self, epoch: int, report: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ask to be let in under a new id, and wait for an epoch that we are in."""
        self.id = self.store.add("ids", 1) - 1
        self.store.add(f"beat/{self.id}", 1)  # from now on our silence tells
        self._pulse.rename(self.id)  # whose connection may take longer to recover from a cut than ours did
        self.store.set(f"name/{self._name}", self.id)
        logger.info("asking to join as %d", self.id)
        self.store.append("asking", json.dumps({"id": self.id, "report": report}) + "\n")
        members = set(self.members)
        while True:
            view = self.store.get(f"view/{epoch}")
            if view is not None:
                if self.id in view["members"]:
                    return epoch, view
                epoch, members = epoch + 1, set(view["members"])
                self._pulse.watch(members)
                continue
            if self.store.has("finished"):
                raise RunFinished("the others have finished")
            if all(self._lost(i) for i in members):
                raise CommunicationError("nobody is left who holds the model")
            time.sleep(5 * POLL_SECONDS)

    def _meet(self, epoch: int, card: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Wait until all members are ready; ``None``: one was lost, this epoch never began."""
        self.store.set(f"ready/{epoch}/{self.id}", card)
        self._pulse.watch(set(self.members) - {self.id})
        cards: dict[int, Any] = {self.id: card}
        while len(cards) < len(self.members):
            for i in self.members:
                if i not in cards and (theirs := self.store.get(f"ready/{epoch}/{i}")) is not None:
                    cards[i] = theirs
            missing = [i for i in self.members if i not in cards]
            if any(self._lost(i) for i in missing) or (missing and self.store.has(f"over/{epoch}")):
                announce_over(self.store, epoch, self.members, f"learner {missing[0]} never came")
                return None
            if missing:
                time.sleep(POLL_SECONDS)
        return [cards[i] for i in self.members]

    def _lost(self, learner: int) -> bool:
        return self.store.has(f"dead/{learner}") or self.store.has(f"done/{learner}") or self._pulse.is_silent(learner)

    # -- during an epoch ----------------------------------------------------------------------------------------

    def watch(self, over: Callable[[str], None]) -> None:
        """Have ``over`` called, from another thread, when the epoch is."""
        self._over, self._watched = over, self.epoch
        arguments = (self.store.clone(), self.epoch, self.id, over)
        self._watcher = threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True)
        self._watcher.start()
        for i in self.members:
            if i != self.id and self.store.has(f"dead/{i}"):
                self.end(f"learner {i} is dead")

    def _watch(self, store: KeyValueStore, epoch: int, learner: int, over: Callable[[str], None]) -> None:
        try:
            store.wait(f"poke/{epoch}/{learner}")
            reason = store.get(f"over/{epoch}")
        except StoreGone as error:
            reason = f"the store is gone: {error}"
        if reason is not None:
            over(reason)

    def end(self, reason: str, store: KeyValueStore | None = None) -> None:
        """Say that this epoch is over; wakes everybody."""
        announce_over(store or self.store, self.epoch, self.members, reason)

    def _silent(self, learner: int, store: KeyValueStore) -> None:
        if self._watched == self.epoch and learner in self.members:
            self.end(f"learner {learner} has been silent for {self.patience:g} s", store)

    def _store_gone(self, reason: str) -> None:
        if self._over is not None:
            self._over(reason)

    def trained(self, numbers: Sequence[int]) -> None:
        """Put down minibatches as safe."""
        if numbers:
            self.store.append(f"safe/{self.id}", "".join(f"{number} " for number in numbers))

    def safe(self, learner: int) -> list[int]:
        """Return what a learner put down as safe."""
        return [int(number) for number in self.store.log(f"safe/{learner}").split()]

    def newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join; all of this epoch who ask by the same ``key`` are told the same."""
        if key:
            name = f"welcome/{self.epoch}/{key}"
            settled: bool = self.store.settle(name, self.newcomers())
            self._settled.append(name)
            if len(self._settled) > KEPT:  # nobody is that far behind
                self.store.delete(self._settled.popleft())
            return settled
        return self.store.log("asking").count("\n") > self.asked

    def leave(self) -> None:
        """Say that we have finished, and stay reachable until all others have, too."""
        deadline = time.monotonic() + self.patience
        waiting = set(self.members) - {self.id}
        with contextlib.suppress(StoreGone):  # its keeper was the last to wait for us
            self.store.set("finished", True)
            self.store.set(f"done/{self.id}", True)
            while waiting and time.monotonic() < deadline and not self.store.has(f"over/{self.epoch}"):
                waiting = {i for i in waiting if not self._lost(i)}
                if waiting:
                    time.sleep(POLL_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End our threads; again is harmless."""
        if not self._pulse.stopped:
            self._pulse.stop()
            with contextlib.suppress(StoreGone):
                self.store.set(f"poke/{self.epoch}/{self.id}", True)
            for thread in (self._pulse, self._watcher):  # one inside torch when Python ends would take us down
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
        silent: Callable[[int, KeyValueStore], None],
        gone: Callable[[str], None],
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self._store, self._id, self._patience = store, learner, heartbeat_timeout
        self._tell, self._gone = silent, gone
        self._every = min(1.0, heartbeat_timeout / 10)
        self._watching: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}  # the counter, and for how long it has stood still
        self._looked = time.monotonic()
        self._stopped = threading.Event()
        self._beaten = threading.Event()
        self._lock = threading.Lock()

    def rename(self, learner: int) -> None:
        """Go on under another id; return once it has beaten."""
        self._beaten.clear()
        self._id = learner
        while self.is_alive() and not self._beaten.wait(self._every):
            pass

    def watch(self, learners: set[int]) -> None:
        """Watch these."""
        with self._lock:
            self._watching = set(learners)

    def is_silent(self, learner: int) -> bool:
        """Tell whether a learner's counter has stood still for too long."""
        seen = self._seen.get(learner)
        return seen is not None and seen[1] > self._patience

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
            while not self._stopped.wait(self._every):
                beating = self._id
                self._store.add(f"beat/{beating}", 1)
                if beating == self._id:
                    self._beaten.set()
                self._look()
        except StoreGone as error:
            if not self._stopped.is_set():
                self._gone(f"the store is gone: {reason(error)}")

    def _look(self) -> None:
        with self._lock:
            watching = sorted(self._watching)
        now = time.monotonic()
        watched, self._looked = min(now - self._looked, self._patience / 2), now
        for learner in watching:
            beat, (before, still) = self._store.add(f"beat/{learner}", 0), self._seen.get(learner, (0, 0.0))
            if beat:
                self._seen[learner] = (beat, still + watched if beat == before else 0.0)
            if self.is_silent(learner) and not self._store.has(f"done/{learner}"):
                self._tell(learner, self._store)


def announce_over(store: KeyValueStore, epoch: int, members: Sequence[int], reason: str) -> None:
    """Write that an epoch is over, for the first reason given, and wake its members."""
    if not store.has(f"over/{epoch}"):
        store.settle(f"over/{epoch}", reason)
        for member in members:
            store.set(f"poke/{epoch}/{member}", True)


def latest_view(store: KeyValueStore) -> tuple[int, list[int]] | None:
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


def bury(store: KeyValueStore, learner: int, reason: str) -> None:
    """Write the obituary of the process that began as ``learner``; by the launcher that saw it end."""
    learner = current_id(store, learner)
    store.set(f"dead/{learner}", reason)
    newest = latest_view(store)
    if newest is not None and learner in newest[1]:
        announce_over(store, *newest, reason)

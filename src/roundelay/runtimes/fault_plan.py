"""Planned faults: what ``--faults "kill 1 at 30s; stop 2 for 10s at 5s; slow 0 x5"`` means.

Faults are separated by semicolons.  Each gives its kind, its target (a learner's number, or ``server 0``), its time
(``at``; by default the start of the run) and its duration (``for``):

``kill 1 at 30s``            the process ends, as by SIGKILL
``stop 2 for 10s at 5s``     it stops, as by SIGSTOP, and continues after 10 s
``slow 0 x5 at 5s for 60s``  its gradients take five times as long
``isolate 2,3 for 10s at 5s``    a network partition between these and the others; simulator only
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from roundelay.config import NonNegative, Positive, Settings
from roundelay.errors import SettingsError, suggest
from roundelay.runtimes.cluster import Cluster, Fault, NetworkPartition, Stop, Straggler

What = Literal["kill", "stop", "slow", "isolate"]
KINDS: tuple[What, ...] = ("kill", "stop", "slow", "isolate")
RESTART_SECONDS = 0.5  # about the time until a restarted process asks to join
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True)
class PlannedFault(Settings):
    """One fault."""

    what: What
    targets: tuple[int, ...]
    at_seconds: NonNegative = 0.0
    seconds: NonNegative = math.inf
    factor: Positive = 1.0
    server: bool = False
    """Whether ``targets`` are servers instead of learners."""

    def ranks(self, servers: int) -> list[int]:
        """Return the initial ranks of the targets; servers come first."""
        return [number if self.server else servers + number for number in self.targets]

    def __str__(self) -> str:
        words = [self.what, *(["server"] if self.server else []), ",".join(map(str, self.targets))]
        words += [f"x{self.factor:g}"] if self.what == "slow" else []
        words += [f"for {self.seconds:g}s"] if math.isfinite(self.seconds) else []
        return " ".join([*words, f"at {self.at_seconds:g}s"])


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a run whose first ``servers`` ranks are servers; a killed learner rejoins ``rejoins`` times."""

    events: Sequence[PlannedFault] = ()
    servers: int = 0
    rejoins: int = 0
    heartbeat_timeout: float | None = None
    """Replaces the heartbeat timeout of a simulated cluster."""

    def apply(self, cluster: Cluster) -> Cluster:
        """Return ``cluster`` with these faults."""
        faults, stops, partitions, stragglers, killed = [], [], [], [], dict[int, int]()
        for event in sorted(self.events, key=lambda event: event.at_seconds):
            learners = [rank - self.servers for rank in event.ranks(self.servers)]
            if event.what == "isolate":
                partitions.append(NetworkPartition(learners, event.at_seconds, event.seconds))
                continue
            for learner in learners:
                if event.what == "kill":
                    killed[learner] = killed.get(learner, 0) + 1
                    again = RESTART_SECONDS if killed[learner] <= self.rejoins else None
                    faults.append(Fault(learner, event.at_seconds, again))
                elif event.what == "stop":
                    stops.append(Stop(learner, event.at_seconds, event.seconds))
                else:
                    end = event.at_seconds + event.seconds
                    stragglers.append(Straggler(learner, event.factor, event.at_seconds, end, announce=True))
        return replace(
            cluster,
            faults=[*cluster.faults, *faults],
            stops=[*cluster.stops, *stops],
            partitions=[*cluster.partitions, *partitions],
            stragglers=[*cluster.stragglers, *stragglers],
            heartbeat_timeout=self.heartbeat_timeout or cluster.heartbeat_timeout,
        )

    def check(self, fired: Sequence[object], seconds: float) -> None:
        """Raise if a fault is not in ``fired``, the faults that have happened to a simulated cluster."""
        happened = [_plain(each) for each in fired]
        unfired = [
            event
            for event in self.events
            if not all(_plain(each) in happened for each in replace(self, events=[event])._cluster_faults())
        ]
        check_all_fired(unfired, seconds)

    def _cluster_faults(self) -> list[object]:
        alone = self.apply(Cluster())
        return [*alone.faults, *alone.stops, *alone.partitions, *alone.stragglers]


def _plain(fault: object) -> object:
    """Return a fault as it was planned, without its restart."""
    return replace(fault, restart_seconds=None) if isinstance(fault, Fault) else fault


def parse(text: str, learners: int, servers: int = 0) -> list[PlannedFault]:
    """Read faults; raise if one does not fit a run of so many learners and servers."""
    events = [_parse_event(part.strip()) for part in text.split(";") if part.strip()]
    if not events:
        raise SettingsError('--faults: no fault is given; write "kill 1 at 30s"')
    for event in events:
        limit, member = (servers, "server") if event.server else (learners, "learner")
        for number in event.targets:
            if number >= limit:
                there = f"use a {member} from 0 to {limit - 1}" if limit else "there are no servers in this run"
                raise SettingsError(f"--faults: {event}: {there}")
    return events


def _parse_event(text: str) -> PlannedFault:
    words = text.lower().split()
    what = next((known for known in KINDS if known == words[0]), None)
    if what is None:
        raise SettingsError(f"--faults: {text!r}: unknown {suggest(words[0], KINDS)}")
    rest = words[1:]
    server = bool(rest) and rest[0] == "server"
    if rest and rest[0] in ("server", "learner"):
        rest = rest[1:]
    if not rest or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", rest[0]):
        raise SettingsError(f'--faults: {text!r}: name the learner, as in "{what} 1 at 30s"')
    targets = tuple(int(number) for number in rest[0].split(","))
    at, seconds, factor, rest = 0.0, math.inf, None, rest[1:]
    while rest:
        if rest[0] in ("at", "for") and len(rest) > 1:
            duration = _parse_seconds(rest[1], text)
            at, seconds = (duration, seconds) if rest[0] == "at" else (at, duration)
            rest = rest[2:]
        elif re.fullmatch(r"x\d{1,9}(\.\d+)?", rest[0]):
            factor, rest = float(rest[0][1:]), rest[1:]
        else:
            raise SettingsError(f"--faults: {text!r}: {rest[0]!r} is none of 'at 5s', 'for 10s' and 'x5'")
    if what in ("stop", "isolate") and not math.isfinite(seconds):
        raise SettingsError(f"--faults: {text!r}: say for how long, as in '{what} {targets[0]} for 10s'")
    if (factor is not None) != (what == "slow") or (factor is not None and factor < 1):
        raise SettingsError(f"--faults: {text!r}: 'slow' and only it takes a factor of at least 1, as in 'slow 0 x5'")
    return PlannedFault(what, targets, at, seconds, factor or 1.0, server)


def _parse_seconds(word: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(ms|s|min|m|h|)", word)
    if match is None:
        raise SettingsError(f"--faults: {text!r}: {word!r} is no duration; use 30s, 500ms or 2m")
    return float(match[1]) * UNITS[match[2]]


def check_all_fired(unfired: Sequence[PlannedFault], seconds: float) -> None:
    """Raise if a planned fault never happened: such a run proves nothing."""
    if unfired:
        raise SettingsError(f"--faults: {unfired[0]} never happened: the run ended after {seconds:.3g} s")

"""Describe a cluster from the record of a run on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.errors import DataError
from roundelay.runs.reader import finite, member_order, read_lines, read_object
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink

FEWEST_STEPS = 10  # of a learner
WARM = 3  # first steps of a learner, left out: caches fill, memory is allocated
QUICK = 1e12  # bytes per second, if a record shows no time at all
SLOW_COPY = 2e8  # bytes per second: no memory is slower, so more time than this is the cost of the call
SMALL = 1e6  # bytes: a message up to this size shows latency rather than bandwidth
BUSY_JITTER = 0.3  # gradients of one size on an idle machine vary by less
TRANSPORTS = {"processes": "shared memory or gloo", "mpi": "MPI"}


@dataclass
class Spans:
    """The steps of one learner: how long each took, and on what."""

    times: list[float] = field(default_factory=list)
    """When each step ended."""
    frames: list[int] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    """Seconds of each kind within each step."""

    def steady(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Yield the seconds, the frames and the parts of each step after the first few."""
        for k in range(max(1, WARM), len(self.times)):
            yield self.times[k] - self.times[k - 1], self.frames[k], self.parts[k]


@dataclass(frozen=True)
class Calibration:
    """A cluster, and the measurements it was made from."""

    cluster: Cluster
    learners: int
    steps: int
    measured: dict[str, float]
    """Seconds, as medians over all steps: of a step, of its gradient, of its own work, of copying, …"""
    notes: list[str]


def calibrate(run: Path, *, trace: int = 0, model_bytes: float | None = None) -> Calibration:
    """Describe the machines that a run used, from its folder; with up to ``trace`` durations as measured.

    Give ``model_bytes`` if the folder has neither a model nor settings.

    The duration of a gradient includes all of a learner's own work between two steps: the gradient, the optimizer's
    step, the snapshot.  The jitter is how much this varies.  The last learner at an operation waits for no other: its
    remaining wait is the network's time, and its communication is its own copying.
    """
    spans = read_spans(run / "record.jsonl")
    learners = {
        member: each for member, each in spans.items() if member.startswith("learner") and len(each.times) > WARM
    }
    steps = sum(len(each.times) for each in learners.values())
    if not learners or min(len(each.times) for each in learners.values()) < FEWEST_STEPS:
        raise DataError(f"{run}: too few steps ({steps}); record at least {FEWEST_STEPS} of each learner, better 50")
    about, nbytes = read_object(run / "run.json"), model_bytes or _model_bytes(run)
    own = {member: [_own(seconds, parts) for seconds, _, parts in each.steady()] for member, each in learners.items()}
    every = [seconds for each in own.values() for seconds in each]
    typical = statistics.median(every)
    frames = round(statistics.median(frames for each in learners.values() for _, frames, _ in each.steady()))
    slowness = [round(statistics.median(own[member]) / typical, 3) for member in sorted(own, key=member_order)]
    copying, moving = _operation_seconds(run, learners)
    fixed = max(0.0, copying - nbytes / SLOW_COPY)
    where = f"{about.get('on', 'processes')}: {TRANSPORTS.get(str(about.get('on')), 'a simulated network')}"
    cluster = Cluster(
        name=f"calibrated from {run.name or run.absolute().name}",
        source=f"roundelay calibrate: {len(learners)} learners on {where}, {steps} steps",
        model_bytes=nbytes,
        frames=max(1, frames),
        intra_node=_link(nbytes, moving, len(learners)),
        compute=_compute(typical, own, _uneven(slowness), trace),
        operation_seconds=fixed,
        copy_bandwidth=nbytes / (copying - fixed) if copying > fixed else math.inf,
        serving_bandwidth=_serving(spans, nbytes),
    )
    measured = {
        "step": statistics.median(seconds for each in learners.values() for seconds, _, _ in each.steady()),
        "gradient": statistics.median(
            parts.get("compute", 0.0) for each in learners.values() for _, _, parts in each.steady()
        ),
        "own": typical,
        "copying": copying,
        "moving": moving,
        "wait": statistics.mean(parts.get("wait", 0.0) for each in learners.values() for *_, parts in each.steady()),
    }
    notes = _notes(about, slowness, copying + moving, len(learners))
    if (jitter := _jitter(list(own.values()))) > BUSY_JITTER:
        notes.insert(
            0,
            f"jitter {jitter:.2g} is high: other programs probably used the machine; record again when it is idle, or "
            "a plan made from this is about a busy machine",
        )
    return Calibration(cluster, len(learners), steps, measured, notes)


def read_spans(record: Path) -> dict[str, Spans]:
    """Read the steps of each member, with the seconds by kind; incomplete lines are skipped."""
    if not record.is_file():
        raise DataError(f"{record}: there is none; give the folder of a run that has ended")
    found: dict[str, Spans] = {}
    now: dict[str, dict[str, float]] = {}
    for event in read_lines(record):
        member, kind, time = event.get("member"), event.get("event"), finite(event.get("time"))
        if not isinstance(member, str) or not isinstance(kind, str) or time is None:
            continue
        spans, parts = found.setdefault(member, Spans()), now.setdefault(member, {})
        if kind == "step":
            spans.times.append(time)
            spans.frames.append(int(finite(event.get("frames")) or 0))
            spans.parts.append(parts)
            now[member] = {}
        elif (seconds := finite(event.get("seconds"))) is not None:
            parts[kind] = parts.get(kind, 0.0) + seconds
            parts[f"{kind} count"] = parts.get(f"{kind} count", 0.0) + 1
    return found


def _own(seconds: float, parts: dict[str, float]) -> float:
    """Return the seconds of a learner's own work in a step, without evaluation."""
    others = sum(parts.get(kind, 0.0) for kind in ("communicate", "wait", "evaluate"))
    return max(seconds - others, parts.get("compute", 0.0), 1e-9)


def _compute(typical: float, own: dict[str, list[float]], slowness: list[float], trace: int) -> Compute:
    """Describe the durations by a distribution or as measured; unequal learners by a factor each."""
    if not trace:
        return Compute(seconds=typical, jitter=_jitter(list(own.values())), slowness=slowness)
    factors = {member: statistics.median(each) / typical if slowness else 1.0 for member, each in own.items()}
    alike = [float(f"{seconds / factors[member]:.4g}") for member, each in own.items() for seconds in each]
    return Compute(seconds=typical, slowness=slowness, trace=alike[:trace])


def _jitter(own: Sequence[Sequence[float]]) -> float:
    """Return the deviation of logarithms by quartiles: a rare pause has no influence."""
    logs = [math.log(seconds / statistics.median(each)) for each in own for seconds in each]
    low, _, high = statistics.quantiles(logs, n=4)
    return round((high - low) / 1.349, 4)


def _uneven(slowness: list[float]) -> list[float]:
    """Return the factors if learners differ by more than chance."""
    return slowness if max(slowness) / min(slowness) > 1.1 else []


def _operation_seconds(run: Path, learners: dict[str, Spans]) -> tuple[float, float]:
    """Return the seconds that a step's communication takes of the learner and of the network."""
    steps = [[parts for *_, parts in each.steady()] for each in learners.values()]
    if not _together(run, len(learners)):  # then the wait of a step says nothing about the network
        return _median([parts["communicate"] for each in steps for parts in each if "communicate" in parts]), 0.0
    last = [min(abreast, key=lambda parts: parts.get("wait", 0.0)) for abreast in zip(*steps, strict=False)]
    talking = [parts for parts in last if "communicate" in parts or "wait" in parts]
    copying = _median([parts.get("communicate", 0.0) for parts in talking])
    return copying, _median([parts.get("wait", 0.0) for parts in talking])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _together(run: Path, learners: int) -> bool:
    """Return whether all learners step together in the run's strategy."""
    from roundelay.strategies import STRATEGIES

    path = run / "settings.toml"
    table = config.read(path).get("strategy", {}) if path.exists() else {}
    return (
        len(config.build_named(STRATEGIES, {"name": "synchronous"} | table, "strategy").lockstep_groups(learners)) == 1
    )


def _link(nbytes: float, seconds: float, learners: int) -> NetworkLink:
    """Return the link with which a ring all-reduce of the model takes ``seconds``; small messages give the latency."""
    rounds = 2 * (learners - 1)
    if seconds <= 0 or not rounds:
        return NetworkLink(latency_seconds=0.0, bandwidth=QUICK)
    if nbytes <= SMALL:
        return NetworkLink(latency_seconds=seconds / rounds, bandwidth=QUICK)
    return NetworkLink(latency_seconds=0.0, bandwidth=min(QUICK, rounds / learners * nbytes / seconds))


def _serving(spans: dict[str, Spans], nbytes: float) -> float:
    served = [
        (parts["serve"], parts["serve count"]) for each in spans.values() for parts in each.parts if "serve" in parts
    ]
    if not served:
        return Cluster.serving_bandwidth
    return nbytes / max(statistics.median(seconds / count for seconds, count in served), 1e-9)


def _model_bytes(run: Path) -> float:
    """Return the size of the model's vector: from the saved model, from a user loop, or from the settings."""
    for name in ("model.json", "run.json"):
        parameters = finite(read_object(run / name).get("parameters"))
        if parameters is not None:
            return 4.0 * parameters
    settings = run / "settings.toml"
    if not settings.exists():
        raise DataError(f"{run}: the model size is unknown; model.json and settings.toml are missing")
    from roundelay.experiment.settings import Experiment

    module = config.build(Experiment, config.read(settings), str(settings)).make_task().make_module()
    return 4.0 * sum(parameter.numel() for parameter in module.parameters())


def _notes(about: dict[str, Any], slowness: list[float], operation_seconds: float, learners: int) -> list[str]:
    notes = []
    if about.get("on") == "simulator":
        notes.append("the run was simulated: this describes the simulated cluster, not a machine")
    if learners == 1:
        notes.append("one learner sends nothing: set the links by hand")
    elif operation_seconds <= 0:
        notes.append("the record has no communication time: set the links by hand")
    if _uneven(slowness):
        notes.append(f"learners differ: {min(slowness):.2f} to {max(slowness):.2f} times the median gradient")
    notes.append("one message size cannot separate latency and bandwidth: up to 1 MB it is latency, above bandwidth")
    notes.append("all learners are described as one node: for several hosts set nodes and [inter_node]")
    return notes

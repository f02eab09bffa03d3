"""The description of a cluster: nodes, links, time of a gradient, slow learners and faults."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from roundelay.config import Count, NonNegative, Positive, Settings, limits
from roundelay.errors import SettingsError


@dataclass(frozen=True)
class NetworkLink(Settings):
    """The network connection between two learners."""

    latency_seconds: NonNegative = 1e-5
    bandwidth: Positive = 1e10
    """Bytes per second, in each direction."""


@dataclass(frozen=True)
class Pauses(Settings):
    """Pauses of a learner: constant length, exponentially distributed times between them."""

    every_seconds: Positive
    seconds: NonNegative


@dataclass(frozen=True)
class Compute(Settings):
    """How long a gradient takes: (``seconds`` + ``seconds_per_frame`` x frames) x slowness x jitter, + pauses."""

    seconds: NonNegative = 0.1
    seconds_per_frame: NonNegative = 0.0
    jitter: Annotated[float, limits(ge=0, largest=100)] = 0.0
    """Standard deviation of the logarithm of a log-normal factor with median 1."""
    slowness: list[Positive] = field(default_factory=list)
    """One factor per learner; 1 for learners beyond the list."""
    pauses: Pauses | None = None
    trace: list[NonNegative] = field(default_factory=list)
    """Recorded durations to use in turn instead of the formula; each learner starts at another index."""


@dataclass(frozen=True)
class Straggler(Settings):
    """A learner that is slower than the others for some time."""

    learner: int
    factor: Positive
    begin_seconds: NonNegative = 0.0
    end_seconds: NonNegative = math.inf
    announce: bool = False
    """Whether to record it as a fault when it begins."""


@dataclass(frozen=True)
class Fault(Settings):
    """A learner that is killed; a server counts backwards from -1."""

    learner: int
    at_seconds: NonNegative
    restart_seconds: NonNegative | None = None
    """Seconds until it is restarted and joins the others; by default it is not."""


@dataclass(frozen=True)
class Stop(Settings):
    """A learner that is stopped for some time."""

    learner: int
    at_seconds: NonNegative
    seconds: NonNegative


@dataclass(frozen=True)
class NetworkPartition(Settings):
    """Learners that for some time reach only each other."""

    learners: list[int]
    at_seconds: NonNegative
    seconds: NonNegative


@dataclass(frozen=True)
class SlowLink(Settings):
    """A learner whose links are slower for some time."""

    learner: int
    factor: Positive
    begin_seconds: NonNegative = 0.0
    end_seconds: NonNegative = math.inf


@dataclass(frozen=True)
class Cluster(Settings):
    """A described cluster; it need not exist.

    Learners fill the nodes one after another; each server has its own node, unless there is only one node.  Each
    learner has a link inside its node; each node has one link to the others, which all its learners share.
    """

    name: str = "one node"
    nodes: Count = 1
    learners_per_node: Count | list[Count] | None = None
    """By default learners are spread evenly over the nodes."""
    intra_node: NetworkLink = field(default_factory=NetworkLink)
    inter_node: NetworkLink = NetworkLink(5e-5, 1.25e9)
    compute: Compute = field(default_factory=Compute)
    all_reduce: Literal["ring", "tree"] = "ring"
    model_bytes: Positive | None = None
    """Assumed size of the model on every link; by default its real size."""
    operation_seconds: NonNegative = 0.0
    """Fixed time that an operation costs the learner itself, beside the network: library calls, waking up."""
    copy_bandwidth: Positive = math.inf
    """Bytes per second at which a learner copies data of operations and replies; it does not compute meanwhile."""
    serving_bandwidth: Positive = 5e9
    """Bytes per second at which requests are served."""
    detection_seconds: NonNegative = 0.05
    """Seconds from a learner's death until the others know."""
    stragglers: list[Straggler] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    partitions: list[NetworkPartition] = field(default_factory=list)
    slow_links: list[SlowLink] = field(default_factory=list)
    heartbeat_timeout: NonNegative = 30.0
    """Seconds without a heartbeat until a learner counts as lost."""
    frames: Count = 256
    """Frames of the minibatch whose time ``compute`` describes; for `roundelay plan`."""
    epoch_seconds: NonNegative = 0.0
    """Time of an epoch beside its minibatches, for any number of learners; for `roundelay plan`."""
    source: str = ""
    """The source of the numbers."""

    @property
    def charges_learner(self) -> bool:
        """Whether an operation costs the learner itself time, beside the network."""
        return self.operation_seconds > 0 or self.copy_bandwidth < math.inf

    @property
    def elastic(self) -> bool:
        """Whether learners may be lost."""
        return bool(self.faults or self.stops or self.partitions)

    def check(self, learners: int, servers: int) -> None:
        """Raise `SettingsError` if the description does not fit so many learners and servers."""
        self.node_sizes(learners)
        for name in ("stragglers", "faults", "stops", "partitions", "slow_links"):
            for each in getattr(self, name):
                for learner in each.learners if isinstance(each, NetworkPartition) else [each.learner]:
                    if not -servers <= learner < learners:
                        raise SettingsError(
                            f"cluster.{name}: learner {learner} of {learners}; use {-servers} to {learners - 1}"
                        )

    def node_sizes(self, learners: int) -> list[int]:
        """Return how many of ``learners`` are on each node."""
        if isinstance(self.learners_per_node, list):
            sizes = self.learners_per_node
            if len(sizes) != self.nodes:
                raise SettingsError(
                    f"cluster.learners_per_node names {len(sizes)} nodes, cluster.nodes is {self.nodes}"
                )
            if sum(sizes) != learners:
                raise SettingsError(f"cluster.learners_per_node has room for {sum(sizes)} learners, not {learners}")
            return sizes
        per_node = self.learners_per_node or -(-learners // self.nodes)
        full, rest = divmod(learners, per_node)
        return [per_node] * full + ([rest] if rest else [])

    def node_of_ranks(self, learners: int, servers: int) -> list[int]:
        """Return the node of every rank, servers first."""
        sizes = self.node_sizes(learners)
        nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
        return [len(sizes) + s if len(sizes) > 1 else 0 for s in range(servers)] + nodes

    def durations(self, learner: int, seed: int) -> _Durations:
        """Return the generator of the durations of ``learner``'s gradients."""
        return _Durations(self, learner, seed)


class _Durations:
    """The durations of one learner's gradients, from its own random generator."""

    def __init__(self, cluster: Cluster, learner: int, seed: int) -> None:
        self.compute = compute = cluster.compute
        self.random = random.Random(f"{seed} {learner}")  # noqa: S311 (not for secrets)
        self.slowness = compute.slowness[learner] if 0 <= learner < len(compute.slowness) else 1.0
        self.stragglers = [s for s in cluster.stragglers if s.learner == learner]
        self.trace_index = learner * 7919
        self.next_pause = self._draw_pause(0.0)

    def __call__(self, now: float, frames: int) -> float:
        compute = self.compute
        if compute.trace:
            seconds = compute.trace[self.trace_index % len(compute.trace)]
            self.trace_index += 1
        else:
            seconds = compute.seconds + compute.seconds_per_frame * frames
        if compute.jitter:
            seconds *= math.exp(self.random.gauss(0.0, compute.jitter))
        seconds *= self.slowness
        for straggler in self.stragglers:
            if straggler.begin_seconds <= now < straggler.end_seconds:
                seconds *= straggler.factor
        while compute.pauses is not None and self.next_pause < now + seconds:
            seconds += compute.pauses.seconds
            self.next_pause = self._draw_pause(now + seconds)
        return seconds

    def capture(self) -> dict[str, Any]:
        """Return the state of the generator and the position in the trace."""
        drawn = self.compute.jitter or self.compute.pauses is not None
        return {
            "turn": self.trace_index,
            "pause": self.next_pause,
            "random": list(self.random.getstate()) if drawn else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `capture` returned."""
        self.trace_index, self.next_pause = state["turn"], state["pause"]
        if state["random"] is not None:
            version, numbers, gauss = state["random"]
            self.random.setstate((version, tuple(numbers), gauss))

    def _draw_pause(self, now: float) -> float:
        pauses = self.compute.pauses
        return now + self.random.expovariate(1.0 / pauses.every_seconds) if pauses is not None else math.inf

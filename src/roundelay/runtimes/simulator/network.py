"""The simulated network: how long messages take, and which links they wait for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from roundelay.runtimes.cluster import Cluster, NetworkLink
from roundelay.runtimes.simulator.event_loop import VirtualLoop

ROUNDING_SECONDS = 1e-9  # of a partition's end, which is no time


class _Port:
    """One direction of a link: busy until ``free``, and for ``busy`` seconds so far, ``latent`` of them for latency."""

    __slots__ = ("busy", "free", "latent")

    def __init__(self) -> None:
        self.free = self.busy = self.latent = 0.0


class SimulatedNetwork:
    """Links with a latency and a bandwidth; messages queue for them first come, first served.

    A message occupies the sender's egress for bytes / bandwidth seconds.  From the same moment, or as soon as it is
    free, it occupies the receiver's ingress for as long; then it takes the latency to arrive.  A busy receiver does not
    block its senders: their messages to other ranks overtake, as in a switch with buffers.  Between nodes, egress and
    ingress belong to the node and all its learners share them: so the link of a parameter server is a bottleneck.
    Collectives cost what the ring or tree algorithm costs over the slowest link they use.
    """

    def __init__(self, loop: VirtualLoop, cluster: Cluster, node_of: Sequence[int]) -> None:
        self.loop, self.cluster, self.node_of = loop, cluster, node_of
        self.scale = 1.0  # how many times larger the model is assumed to be than it is
        self.paused = False  # while learners evaluate or save, messages cost no time
        self._learners = [(_Port(), _Port()) for _ in node_of]  # egress and ingress, inside the node
        self._nodes = {node: (_Port(), _Port()) for node in node_of}  # egress and ingress, between nodes
        self._links: dict[tuple[int, ...], tuple[NetworkLink, tuple[_Port, ...]]] = {}
        self._isolated: dict[int, float] = {}  # by rank: until when it is isolated from the others
        self._slow: dict[int, tuple[float, float]] = {}  # by rank: how many times slower its links are, until when

    def isolate(self, ranks: Sequence[int], until: float) -> None:
        """Block messages between these ranks and all others until then; messages under way still arrive."""
        self._isolated |= dict.fromkeys(ranks, until)

    def isolated_for(self, rank: int) -> float:
        """Return for how many more seconds a rank is isolated."""
        left = self._isolated.get(rank, 0.0) - self.loop.now if self._isolated else 0.0
        return left if left > ROUNDING_SECONDS else 0.0

    def slow(self, rank: int, factor: float, until: float) -> None:
        """Make a rank's links ``factor`` times slower until then."""
        self._slow[rank] = (factor, until)

    def _faults_among(self, ranks: Sequence[int]) -> tuple[float, float]:
        """Return for how long some of these ranks are isolated from others, and how many times slower links are."""
        isolated = [self.isolated_for(rank) for rank in ranks]
        now = self.loop.now
        factors = [factor for rank in ranks for factor, until in [self._slow.get(rank, (1.0, now))] if now < until]
        return (max(isolated) if any(isolated) and not all(isolated) else 0.0), max(factors, default=1.0)

    def transfer(self, x_bytes: float, source: int, target: int, arrived: Callable[[], None]) -> float:
        """Send bytes now and call ``arrived`` when they arrive; return the seconds that they move."""
        loop, slower = self.loop, 1.0
        if self._isolated or self._slow:
            blocked, slower = self._faults_among((source, target))
            if blocked:
                loop.call_later(blocked, functools.partial(self._resend, x_bytes, source, target, arrived))
                return blocked
        if self.paused or source == target:
            loop.call_later(0.0, arrived)
            return 0.0
        here, there = self.node_of[source], self.node_of[target]
        if here == there:
            link, egress, ingress = self.cluster.intra_node, self._learners[source][0], self._learners[target][1]
        else:
            link, egress, ingress = self.cluster.inter_node, self._nodes[here][0], self._nodes[there][1]
        seconds = slower * x_bytes * self.scale / link.bandwidth

        def leave() -> None:
            """Occupy the ingress, from the moment when the first byte leaves."""
            begin = max(loop.now, ingress.free)
            ingress.free = begin + seconds
            ingress.busy += seconds
            loop.call_later(begin + seconds + slower * link.latency_seconds - loop.now, arrived)

        begin = max(loop.now, egress.free)
        egress.free = begin + seconds
        egress.busy += seconds
        if begin > loop.now:
            loop.call_later(begin - loop.now, leave)
        else:
            leave()
        return seconds + link.latency_seconds

    def _resend(self, x_bytes: float, source: int, target: int, arrived: Callable[[], None]) -> None:
        self.transfer(x_bytes, source, target, arrived)

    def collective(self, operation: str, x_bytes: float, members: tuple[int, ...]) -> tuple[float, float]:
        """Start a collective of all ``members`` now; return the seconds until it is done, and those it moves bytes."""
        size, blocked, slower = len(members), 0.0, 1.0
        if self._isolated or self._slow:
            blocked, slower = self._faults_among(members)
        if self.paused or size == 1:
            return blocked, blocked
        link, ports = self._route(members)
        whole = x_bytes * self.scale / link.bandwidth
        rounds = math.ceil(math.log2(size))
        if operation == "broadcast":
            hops, seconds = rounds, rounds * (link.latency_seconds + whole)
        elif operation == "gather":
            hops, seconds = size - 1, (size - 1) * (link.latency_seconds + whole)
        elif self.cluster.all_reduce == "tree":
            hops, seconds = 2 * rounds, 2 * rounds * (link.latency_seconds + whole)
        else:
            hops, seconds = 2 * (size - 1), 2 * (size - 1) * (link.latency_seconds + whole / size)
        begin, seconds = max(self.loop.now + blocked, max(port.free for port in ports)), slower * seconds
        latent = slower * hops * link.latency_seconds
        for port in ports:
            port.free = begin + seconds
            port.busy += seconds
            port.latent += latent
        return begin + seconds - self.loop.now, seconds

    def used(self) -> dict[str, list[tuple[float, float]]]:
        """Return how long the busier direction of each link was in use so far, and how much of that was latency.

        By ``intra_node``, of each rank's link in its node, and ``inter_node``, of each node's link to the others.
        """
        links = {"intra_node": self._learners, "inter_node": [self._nodes[node] for node in sorted(self._nodes)]}
        return {name: [max((p.busy, p.latent) for p in ports) for ports in both] for name, both in links.items()}

    def capture(self) -> list[float]:
        """Return until when each direction of each link is busy."""
        return [port.free for port in self._ports()]

    def restore(self, free: Sequence[float]) -> None:
        """Restore what `capture` returned."""
        for port, until in zip(self._ports(), free, strict=True):
            port.free = until

    def _ports(self) -> list[_Port]:
        return [port for pair in [*self._learners, *self._nodes.values()] for port in pair]

    def _route(self, members: tuple[int, ...]) -> tuple[NetworkLink, tuple[_Port, ...]]:
        """Return the slowest link of a collective, and the ports it occupies."""
        if members not in self._links:
            nodes = sorted({self.node_of[member] for member in members})
            inside, between = self.cluster.intra_node, self.cluster.inter_node
            if len(nodes) == 1:
                self._links[members] = (inside, tuple(port for member in members for port in self._learners[member]))
            else:
                slowest = NetworkLink(between.latency_seconds, min(inside.bandwidth, between.bandwidth))
                self._links[members] = (slowest, tuple(port for node in nodes for port in self._nodes[node]))
        return self._links[members]

"""The simulated network: what moving bytes costs, and who has to wait for whose link."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from roundelay.runtimes.cluster import Cluster, NetworkLink
from roundelay.runtimes.simulator.event_loop import VirtualLoop

__all__ = ["SimulatedNetwork"]

MOMENT = 1e-9  # what is left of a cut by rounding


class _Port:
    """One direction of a link: busy until ``free``, and for ``busy`` seconds so far, ``latent`` of them for latency."""

    __slots__ = ("busy", "free", "latent")

    def __init__(self) -> None:
        self.free = self.busy = self.latent = 0.0


class SimulatedNetwork:
    """Links with a latency and a bandwidth; messages queue for them first come, first served.

    A message occupies the sender's way out for its bytes / bandwidth, and from the same moment on, or as soon as that
    is free, the receiver's way in for as long; then it takes the latency to arrive.  A receiver that is busy does not
    hold up its senders: what they send elsewhere overtakes, as in a switch that has room.  Between nodes these ways are
    the nodes', shared by all their learners: so a parameter server's link is the bottleneck that it is.  Collectives
    cost what the ring or tree algorithm costs over the slowest link they use.
    """

    def __init__(self, kernel: VirtualLoop, cluster: Cluster, homes: Sequence[int]) -> None:
        self.kernel, self.cluster, self.homes = kernel, cluster, homes
        self.scale = 1.0  # how much larger the model is said to be than it is
        self.still = False  # while learners meet, messages cost nothing
        self._learners = [(_Port(), _Port()) for _ in homes]  # out and in, inside the node
        self._nodes = {home: (_Port(), _Port()) for home in homes}  # out and in, between nodes
        self._links: dict[tuple[int, ...], tuple[NetworkLink, tuple[_Port, ...]]] = {}
        self._cut: dict[int, float] = {}  # by seat: until when nothing passes between such seats and the others
        self._slow: dict[int, tuple[float, float]] = {}  # by seat: how many times slower its links are, until when

    def cut(self, seats: Sequence[int], until: float) -> None:
        """Let nothing pass between these and all others until then; what is under way still arrives."""
        self._cut |= dict.fromkeys(seats, until)

    def cut_for(self, seat: int) -> float:
        """Return for how many more seconds a seat is cut off."""
        left = self._cut.get(seat, 0.0) - self.kernel.now if self._cut else 0.0
        return left if left > MOMENT else 0.0

    def slow(self, seat: int, factor: float, until: float) -> None:
        """Make a seat's links so many times slower until then."""
        self._slow[seat] = (factor, until)

    def _disturbance(self, seats: Sequence[int]) -> tuple[float, float]:
        """Return for how long nothing passes between some of these seats, and how many times slower it then is."""
        cuts = [self.cut_for(seat) for seat in seats]
        now = self.kernel.now
        factors = [factor for seat in seats for factor, until in [self._slow.get(seat, (1.0, now))] if now < until]
        return (max(cuts) if any(cuts) and not all(cuts) else 0.0), max(factors, default=1.0)

    def transfer(self, x_bytes: float, source: int, target: int, arrived: Callable[[], None]) -> float:
        """Send bytes now and call ``arrived`` when they are there; return the seconds that they are on the way."""
        kernel, slower = self.kernel, 1.0
        if self._cut or self._slow:
            blocked, slower = self._disturbance((source, target))
            if blocked:
                kernel.after(blocked, functools.partial(self._pass, x_bytes, source, target, arrived))
                return blocked
        if self.still or source == target:
            kernel.after(0.0, arrived)
            return 0.0
        home, away = self.homes[source], self.homes[target]
        if home == away:
            link, way_out, way_in = self.cluster.intra_node, self._learners[source][0], self._learners[target][1]
        else:
            link, way_out, way_in = self.cluster.inter_node, self._nodes[home][0], self._nodes[away][1]
        seconds = slower * x_bytes * self.scale / link.bandwidth

        def leave() -> None:
            """Begin to arrive, at the moment at which the first byte leaves."""
            begin = max(kernel.now, way_in.free)
            way_in.free = begin + seconds
            way_in.busy += seconds
            kernel.after(begin + seconds + slower * link.latency_seconds - kernel.now, arrived)

        begin = max(kernel.now, way_out.free)
        way_out.free = begin + seconds
        way_out.busy += seconds
        if begin > kernel.now:
            kernel.after(begin - kernel.now, leave)
        else:
            leave()
        return seconds + link.latency_seconds

    def _pass(self, x_bytes: float, source: int, target: int, arrived: Callable[[], None]) -> None:
        self.transfer(x_bytes, source, target, arrived)

    def collective(self, verb: str, x_bytes: float, members: tuple[int, ...]) -> tuple[float, float]:
        """Start a collective of all ``members`` now; return in how many seconds it is done, and how many it moves."""
        size, blocked, slower = len(members), 0.0, 1.0
        if self._cut or self._slow:
            blocked, slower = self._disturbance(members)
        if self.still or size == 1:
            return blocked, blocked
        link, ports = self._route(members)
        whole = x_bytes * self.scale / link.bandwidth
        rounds = math.ceil(math.log2(size))
        if verb == "broadcast":
            hops, seconds = rounds, rounds * (link.latency_seconds + whole)
        elif verb == "gather":
            hops, seconds = size - 1, (size - 1) * (link.latency_seconds + whole)
        elif self.cluster.all_reduce == "tree":
            hops, seconds = 2 * rounds, 2 * rounds * (link.latency_seconds + whole)
        else:
            hops, seconds = 2 * (size - 1), 2 * (size - 1) * (link.latency_seconds + whole / size)
        begin, seconds = max(self.kernel.now + blocked, max(port.free for port in ports)), slower * seconds
        latent = slower * hops * link.latency_seconds
        for port in ports:
            port.free = begin + seconds
            port.busy += seconds
            port.latent += latent
        return begin + seconds - self.kernel.now, seconds

    def used(self) -> dict[str, list[tuple[float, float]]]:
        """Return for how long the busier way of each link was in use so far, and how much of that was latency.

        By ``intra_node``, of each rank's link in its node, and ``inter_node``, of each node's link to the others.
        """
        links = {"intra_node": self._learners, "inter_node": [self._nodes[home] for home in sorted(self._nodes)]}
        return {name: [max((p.busy, p.latent) for p in ports) for ports in both] for name, both in links.items()}

    def capture(self) -> list[float]:
        """Return until when each way is busy."""
        return [port.free for port in self._ports()]

    def restore(self, free: Sequence[float]) -> None:
        """Take back what `capture` gave."""
        for port, until in zip(self._ports(), free, strict=True):
            port.free = until

    def _ports(self) -> list[_Port]:
        return [port for pair in [*self._learners, *self._nodes.values()] for port in pair]

    def _route(self, members: tuple[int, ...]) -> tuple[NetworkLink, tuple[_Port, ...]]:
        """Return the slowest link of a collective, and the ways it occupies."""
        if members not in self._links:
            nodes = sorted({self.homes[member] for member in members})
            inside, between = self.cluster.intra_node, self.cluster.inter_node
            if len(nodes) == 1:
                self._links[members] = (inside, tuple(port for member in members for port in self._learners[member]))
            else:
                slowest = NetworkLink(between.latency_seconds, min(inside.bandwidth, between.bandwidth))
                self._links[members] = (slowest, tuple(port for node in nodes for port in self._nodes[node]))
        return self._links[members]

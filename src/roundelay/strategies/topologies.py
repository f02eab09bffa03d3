"""Topologies: which ranks exchange weights at an iteration."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from roundelay.errors import SettingsError, suggest


class Edge(NamedTuple):
    """One exchange: send to ``to``, receive from ``source``; the same rank in an undirected graph."""

    to: int
    source: int


class Topology:
    """A function of rank, number of learners and iteration, so all learners agree on it without a message."""

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    """The numbers of learners that fit, in words; for error messages."""

    def fits(self, size: int) -> bool:
        """Return whether ``size`` learners fit."""
        return True

    def check(self, size: int) -> None:
        """Raise `SettingsError` if ``size`` learners do not fit."""
        if not self.fits(size):
            raise SettingsError(f"topology {self.name!r} needs {self.needs}, not {size}")

    def fallback(self) -> Topology:
        """Return the topology to use if the number of learners does not fit; it fits any number."""
        return self

    def or_fallback(self, size: int) -> Topology:
        """Return this topology if ``size`` learners fit, else its fallback; for use after a loss."""
        return self if self.fits(size) else self.fallback()

    def fallback_note(self, size: int) -> str:
        """Return a note for the record if ``size`` learners need the fallback, else nothing."""
        return "" if self.fits(size) else f"{self.name} does not fit {size} learners: {self.fallback().name} instead"

    def cycle(self, size: int) -> int:
        """Return the number of iterations after which it repeats; 0: never, it is random."""
        return 1

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the exchanges of ``rank`` at an iteration; as many come in as go out."""
        raise NotImplementedError

    def asks(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        """Return the neighbours that ``rank`` asks; of an undirected link, one end asks and the other end replies."""
        raise NotImplementedError(f"{self.name} has no end that asks")

    def neighbours(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        """Return the ranks that ``rank`` receives from."""
        return [link.source for link in self.links(rank, size, iteration)]


@dataclass(frozen=True)
class Ring(Topology):
    """The left and the right neighbour, always the same."""

    name: ClassVar[str] = "ring"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        # with two learners the left and the right neighbour are one
        return [Edge(peer, peer) for peer in sorted({(rank - 1) % size, (rank + 1) % size} - {rank})]

    def asks(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        return _one_way(range(size), rank)


@dataclass(frozen=True)
class DirectedRing(Topology):
    """The learner before us, always the same: each sends to the next rank only."""

    name: ClassVar[str] = "directed-ring"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        return [Edge((rank + 1) % size, (rank - 1) % size)] if size > 1 else []


@dataclass(frozen=True)
class RandomRing(Topology):
    """A ring through all learners in a new random order at each iteration; all draw it from one seed."""

    name: ClassVar[str] = "random-ring"

    seed: int = 0

    def cycle(self, size: int) -> int:
        return 1 if size <= 3 else 0  # all rings of three learners are the same

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        order, index_of = _permutation(self.seed, size, iteration)
        here = index_of[rank]
        return [Edge(peer, peer) for peer in sorted({order[here - 1], order[(here + 1) % size]} - {rank})]

    def asks(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        order, index_of = _permutation(self.seed, size, iteration)
        return _one_way(order, index_of[rank])


@dataclass(frozen=True)
class Complete(Topology):
    """All pairs of learners: uniform shares are then the mean itself."""

    name: ClassVar[str] = "complete"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        return [Edge(peer, peer) for peer in range(size) if peer != rank]

    def asks(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        opposite = [size // 2] if size % 2 == 0 and rank < size // 2 else []
        return [(rank + distance) % size for distance in [*range(1, (size + 1) // 2), *opposite]]


@dataclass(frozen=True)
class ExponentialGraph(Topology):
    """One peer per iteration, at rank + 1, 2, 4, …: the mean after log2(n) rounds if n is a power of two."""

    name: ClassVar[str] = "exponential"

    def cycle(self, size: int) -> int:
        return max(1, (size - 1).bit_length())

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        if size == 1:
            return []
        distance = 1 << iteration % self.cycle(size)
        return [Edge((rank + distance) % size, (rank - distance) % size)]


@dataclass(frozen=True)
class StaticExponential(Topology):
    """All peers at rank + 1, 2, 4, …, at every iteration."""

    name: ClassVar[str] = "static-exponential"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        return [Edge((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range((size - 1).bit_length())]


@dataclass(frozen=True)
class Butterfly(Topology):
    """The partner is rank XOR 2^round: the mean after log2(n) rounds, one exchange each.

    Its fallback is `ExponentialGraph`, the same idea for any number of learners.
    """

    name: ClassVar[str] = "butterfly"
    needs: ClassVar[str] = "a power of two learners"

    def fits(self, size: int) -> bool:
        return size & (size - 1) == 0

    def fallback(self) -> Topology:
        return ExponentialGraph()

    def cycle(self, size: int) -> int:
        return max(1, (size - 1).bit_length())

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        if size == 1:
            return []
        partner = rank ^ 1 << iteration % self.cycle(size)
        return [Edge(partner, partner)]


@dataclass(frozen=True)
class HoppingRing(Topology):
    """One peer per iteration, each time one rank further away."""

    name: ClassVar[str] = "hopping-ring"

    def cycle(self, size: int) -> int:
        return max(1, size - 1)

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        if size == 1:
            return []
        distance = 1 + iteration % (size - 1)
        return [Edge((rank + distance) % size, (rank - distance) % size)]


@dataclass(frozen=True)
class Bipartite(Topology):
    """Pairs of an even, active rank and an odd, passive one, at distances 1, 3, 5, 9, … along the ring.

    Only the active rank starts an exchange, so exchanges never cross and never deadlock (Lian et al., 2018).
    The ``uneven`` form fits an odd number of learners too: active ranks take turns to be left out.
    """

    name: ClassVar[str] = "bipartite"
    needs: ClassVar[str] = "an even number of learners"

    uneven: bool = False

    def fits(self, size: int) -> bool:
        return self.uneven or size == 1 or size % 2 == 0

    def fallback(self) -> Topology:
        return Bipartite(uneven=True)

    def fallback_note(self, size: int) -> str:
        return "" if self.fits(size) else f"{size} learners do not pair up: one active learner at a time is left out"

    def active(self, rank: int) -> bool:
        """Return whether ``rank`` starts exchanges; a passive rank only replies."""
        return rank % 2 == 0

    def cycle(self, size: int) -> int:
        return 1 + ((size + 1) // 2 - 1).bit_length()

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        actives, index = (size + 1) // 2, rank // 2  # our index among the active, or among the passive ranks
        hop = (0, *(1 << k for k in range(self.cycle(size) - 1)))[iteration % self.cycle(size)]
        partner = 2 * ((index + hop) % actives) + 1 if self.active(rank) else 2 * ((index - hop) % actives)
        return [Edge(partner, partner)] if partner < size else []


@dataclass(frozen=True)
class FixedGraph(Topology):
    """The undirected graph of these edges; its fallback is the ring."""

    name: ClassVar[str] = "graph"

    edges: tuple[tuple[int, int], ...]

    def check(self, size: int) -> None:
        if not self.fits(size):
            raise SettingsError(f"the edges {list(self.edges)} do not connect {size} learners, 0 to {size - 1}")

    def fits(self, size: int) -> bool:
        reached, new = {0}, {0}
        while new:
            new = {peer for rank in new for peer in self._peers(rank)} - reached
            reached |= new
        return reached == set(range(size))

    def fallback(self) -> Topology:
        return Ring()

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        return [Edge(peer, peer) for peer in self._peers(rank)]

    def _peers(self, rank: int) -> list[int]:
        return sorted({a + b - rank for a, b in self.edges if rank in (a, b) and a != b})


TOPOLOGIES: dict[str, type[Topology]] = {
    topology.name: topology
    for topology in (
        *(Bipartite, Butterfly, Complete, DirectedRing, ExponentialGraph),
        *(HoppingRing, RandomRing, Ring, StaticExponential),
    )
}
"""By the name in an experiment; a `FixedGraph` has edges instead of a name."""


def find_topology(name: str, *, seed: int = 0) -> Topology:
    """Return the topology of this name; ``seed`` is for the random one."""
    if name not in TOPOLOGIES:
        raise SettingsError(f"unknown topology {suggest(name, TOPOLOGIES)}")
    return RandomRing(seed) if name == RandomRing.name else TOPOLOGIES[name]()


def _one_way(order: Sequence[int], here: int) -> list[int]:
    """Return the next rank of a ring; a ring of two has one link, and its first rank asks."""
    return [order[(here + 1) % len(order)]] if len(order) > 2 or (len(order) == 2 and here == 0) else []


@functools.lru_cache(maxsize=256)
def _permutation(seed: int, size: int, iteration: int) -> tuple[list[int], list[int]]:
    """Return the order of all ranks at an iteration, and the index of each rank in it."""
    generator = torch.Generator().manual_seed(hash((seed, iteration, 7)) & (2**63 - 1))
    order = torch.randperm(size, generator=generator)
    return order.tolist(), order.argsort().tolist()

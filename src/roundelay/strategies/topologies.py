"""Topologies: who talks to whom."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from roundelay.errors import SettingsError, suggest

__all__ = [
    "TOPOLOGIES",
    "Bipartite",
    "Edge",
    "FixedGraph",
    "RandomRing",
    "Ring",
    "Topology",
    "find_topology",
    "fitting",
]


class Edge(NamedTuple):
    """One exchange: send to ``to``, receive from ``source``; the same rank in an undirected graph."""

    to: int
    source: int


class Topology:
    """Who talks to whom; ranks, sizes and iterations are all there is to know, so all learners agree on it."""

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    """What a number of learners must be to fit, in words."""

    def fits(self, size: int) -> bool:
        """Say whether ``size`` learners can talk so."""
        return True

    def check(self, size: int) -> None:
        """Raise `SettingsError` where ``size`` learners cannot talk so."""
        if not self.fits(size):
            raise SettingsError(f"topology {self.name!r} needs {self.needs}, not {size}")

    def fallback(self) -> Topology:
        """Return the form to go on with where the number of learners no longer fits; it fits any number."""
        return self

    def cycle(self, size: int) -> int:
        """Return after how many iterations it repeats; 0: never, it is random."""
        return 1

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the exchanges of ``rank`` at an iteration; as many come in as go out."""
        raise NotImplementedError

    def neighbours(self, rank: int, size: int, iteration: int = 0) -> list[int]:
        """Return those whom ``rank`` hears."""
        return [link.source for link in self.links(rank, size, iteration)]


@dataclass(frozen=True)
class Ring(Topology):
    """Left and right neighbour, always the same."""

    name: ClassVar[str] = "ring"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the links to the left and to the right; with two learners these are one."""
        return [Edge(peer, peer) for peer in sorted({(rank - 1) % size, (rank + 1) % size} - {rank})]


@dataclass(frozen=True)
class RandomRing(Topology):
    """A ring through all learners in a fresh order each iteration, drawn by everyone from one seed."""

    name: ClassVar[str] = "random-ring"

    seed: int = 0

    def cycle(self, size: int) -> int:
        """Never repeat, unless the learners are so few that every ring is the same."""
        return 1 if size <= 3 else 0

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the links to the left and to the right in this iteration's order."""
        order, place = _permutation(self.seed, size, iteration)
        here = place[rank]
        return [Edge(peer, peer) for peer in sorted({order[here - 1], order[(here + 1) % size]} - {rank})]


@dataclass(frozen=True)
class Complete(Topology):
    """Everyone with everyone: uniform shares are then the mean itself."""

    name: ClassVar[str] = "complete"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the links to all others."""
        return [Edge(peer, peer) for peer in range(size) if peer != rank]


@dataclass(frozen=True)
class ExponentialGraph(Topology):
    """One peer an iteration, 1, 2, 4, … places on: the mean after log2(n) rounds where n is a power of two."""

    name: ClassVar[str] = "exponential"

    def cycle(self, size: int) -> int:
        """Return the number of distances."""
        return max(1, (size - 1).bit_length())

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return one directed link, 2^k places on."""
        if size == 1:
            return []
        distance = 1 << iteration % self.cycle(size)
        return [Edge((rank + distance) % size, (rank - distance) % size)]


@dataclass(frozen=True)
class StaticExponential(Topology):
    """All of 1, 2, 4, … places on, at every iteration."""

    name: ClassVar[str] = "static-exponential"

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return a directed link for each distance."""
        return [Edge((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range((size - 1).bit_length())]


@dataclass(frozen=True)
class Butterfly(Topology):
    """The partner is rank XOR 2^round: the mean after log2(n) rounds, each of them half an exchange of weights.

    It goes on as `Exponential`, which is the same idea for any number of learners, where that is no power of two.
    """

    name: ClassVar[str] = "butterfly"
    needs: ClassVar[str] = "a power of two learners"

    def fits(self, size: int) -> bool:
        """Say whether ``size`` is a power of two."""
        return size & (size - 1) == 0

    def fallback(self) -> Topology:
        """Return the one-peer exponential graph."""
        return ExponentialGraph()

    def cycle(self, size: int) -> int:
        """Return the number of bits of a rank."""
        return max(1, (size - 1).bit_length())

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the link to the partner of this round."""
        if size == 1:
            return []
        partner = rank ^ 1 << iteration % self.cycle(size)
        return [Edge(partner, partner)]


@dataclass(frozen=True)
class HoppingRing(Topology):
    """One peer an iteration, and each time one place further on."""

    name: ClassVar[str] = "hopping-ring"

    def cycle(self, size: int) -> int:
        """Return the number of distances."""
        return max(1, size - 1)

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return one directed link."""
        if size == 1:
            return []
        distance = 1 + iteration % (size - 1)
        return [Edge((rank + distance) % size, (rank - distance) % size)]


@dataclass(frozen=True)
class Bipartite(Topology):
    """Pairs of an even, active rank and an odd, passive one, at distances 1, 3, 5, 9, … along the ring.

    Only the active one begins an exchange, so none can cross another or wait in a circle (Lian et al., 2018).
    The ``uneven`` form takes an odd number of learners too: one active rank after another sits out.
    """

    name: ClassVar[str] = "bipartite"
    needs: ClassVar[str] = "an even number of learners"

    uneven: bool = False

    def fits(self, size: int) -> bool:
        """Say whether there are as many active as passive learners; one alone has nobody to talk to."""
        return self.uneven or size == 1 or size % 2 == 0

    def fallback(self) -> Topology:
        """Return the uneven form, in which the roles stay."""
        return Bipartite(uneven=True)

    def active(self, rank: int) -> bool:
        """Say whether ``rank`` begins exchanges rather than answers them."""
        return rank % 2 == 0

    def cycle(self, size: int) -> int:
        """Return the number of distances."""
        return 1 + ((size + 1) // 2 - 1).bit_length()

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return the link to the partner of this iteration, if there is one."""
        actives, number = (size + 1) // 2, rank // 2  # our number among those of our kind
        hop = (0, *(1 << k for k in range(self.cycle(size) - 1)))[iteration % self.cycle(size)]
        active = self.active(rank)
        partner = 2 * ((number + hop) % actives) + 1 if active else 2 * ((number - hop) % actives)
        return [Edge(partner, partner)] if partner < size else []


@dataclass(frozen=True)
class FixedGraph(Topology):
    """The undirected graph of these edges; where it no longer fits, its learners go on in a ring."""

    name: ClassVar[str] = "graph"

    edges: tuple[tuple[int, int], ...]

    def check(self, size: int) -> None:
        """Raise `SettingsError` where the edges do not connect ``size`` learners."""
        if not self.fits(size):
            raise SettingsError(f"the edges {list(self.edges)} do not connect {size} learners, 0 to {size - 1}")

    def fits(self, size: int) -> bool:
        """Say whether the edges connect ``size`` learners and no others."""
        reached, new = {0}, {0}
        while new:
            new = {peer for rank in new for peer in self._peers(rank)} - reached
            reached |= new
        return reached == set(range(size))

    def fallback(self) -> Topology:
        """Return the ring."""
        return Ring()

    def links(self, rank: int, size: int, iteration: int = 0) -> list[Edge]:
        """Return a link for each edge."""
        return [Edge(peer, peer) for peer in self._peers(rank)]

    def _peers(self, rank: int) -> list[int]:
        return sorted({a + b - rank for a, b in self.edges if rank in (a, b) and a != b})


TOPOLOGIES: dict[str, type[Topology]] = {
    topology.name: topology
    for topology in (
        *(Bipartite, Butterfly, Complete, ExponentialGraph),
        *(HoppingRing, RandomRing, Ring, StaticExponential),
    )
}
"""By the name that an experiment gives; a `Graph` has edges instead."""


def find_topology(name: str, *, seed: int = 0) -> Topology:
    """Return the topology of this name; ``seed`` is for the random one."""
    if name not in TOPOLOGIES:
        raise SettingsError(f"unknown topology {suggest(name, TOPOLOGIES)}")
    return RandomRing(seed) if name == RandomRing.name else TOPOLOGIES[name]()


def fitting(topology: Topology, size: int) -> Topology:
    """Return ``topology`` where it fits ``size`` learners, else its fallback; for use after a loss."""
    return topology if topology.fits(size) else topology.fallback()


@functools.lru_cache(maxsize=256)
def _permutation(seed: int, size: int, iteration: int) -> tuple[list[int], list[int]]:
    """Return the order of all ranks at an iteration, and each rank's place in it."""
    generator = torch.Generator().manual_seed(hash((seed, iteration, 7)) & (2**63 - 1))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    place = [0] * size
    for here, rank in enumerate(order):
        place[rank] = here
    return order, place

"""Strategies of the literature, one file per paper, and their registry for command line, tests and pages."""

from __future__ import annotations

from typing import Any

from roundelay.config import build_named
from roundelay.plugins import Registry
from roundelay.strategies.adpsgd import ADPSGD
from roundelay.strategies.adpsgd_pairwise import PairwiseADPSGD
from roundelay.strategies.adpsgd_random import RandomADPSGD
from roundelay.strategies.asgd import ASGD
from roundelay.strategies.asgd_updates import UpdatesASGD
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.bmuf import BMUF
from roundelay.strategies.compression import COMPRESSIONS, Compression
from roundelay.strategies.delay_by_one import DelayByOne
from roundelay.strategies.diloco import DiLoCo
from roundelay.strategies.dpsgd import DPSGD
from roundelay.strategies.easgd import EASGD
from roundelay.strategies.easgd_synchronous import SynchronousEASGD
from roundelay.strategies.gossip_pga import GossipPGA
from roundelay.strategies.hierarchical import Hierarchical
from roundelay.strategies.sgp import SGP
from roundelay.strategies.slowmo import SlowMo
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy

__all__ = [
    "ADPSGD",
    "ASGD",
    "BMUF",
    "DPSGD",
    "EASGD",
    "SGP",
    "STRATEGIES",
    "Averaging",
    "DelayByOne",
    "DiLoCo",
    "GossipPGA",
    "Hierarchical",
    "PairwiseADPSGD",
    "RandomADPSGD",
    "SlowMo",
    "Synchronous",
    "SynchronousEASGD",
    "UpdatesASGD",
    "find",
    "make_strategy",
]

_KINDS: dict[str, type[Strategy]] = {
    "adpsgd": ADPSGD,
    "adpsgd-pairwise": PairwiseADPSGD,
    "adpsgd-random": RandomADPSGD,
    "asgd": ASGD,
    "asgd-updates": UpdatesASGD,
    "averaging": Averaging,
    "bmuf": BMUF,
    "delay-by-one": DelayByOne,
    "diloco": DiLoCo,
    "dpsgd": DPSGD,
    "easgd": EASGD,
    "easgd-synchronous": SynchronousEASGD,
    "gossip-pga": GossipPGA,
    "hierarchical": Hierarchical,
    "sgp": SGP,
    "slowmo": SlowMo,
    "synchronous": Synchronous,
}
STRATEGIES = Registry(Strategy, _KINDS, "roundelay.strategies")
"""By the name that an experiment gives."""
Strategy.registry = STRATEGIES
Compression.registry = Registry(Compression, COMPRESSIONS)


def find(name: str) -> type[Strategy]:
    """Return the strategy of this name."""
    return STRATEGIES.find(name, "strategy")


def make_strategy(name: str, **settings: Any) -> Strategy:
    """Make a strategy by its name and settings, as an experiment does: for a program that is told its strategy.

    >>> make_strategy("bmuf", block=20).block
    20
    """
    return build_named(STRATEGIES, {"name": name} | settings, "strategy")

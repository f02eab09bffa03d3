"""Train acoustic models for speech recognition on many learners at once.

Every parallel SGD strategy of the speech literature, behind one interface: written once, it runs on real processes,
under MPI, and on a simulated cluster.  `join` brings them to any PyTorch loop; `roundelay --help` to acoustic models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roundelay._version import __version__

if TYPE_CHECKING:
    from roundelay.communicator import Communicator
    from roundelay.errors import RoundelayError
    from roundelay.learner import Learner
    from roundelay.strategies.adpsgd import ADPSGD
    from roundelay.strategies.adpsgd_pairwise import PairwiseADPSGD
    from roundelay.strategies.adpsgd_random import RandomADPSGD
    from roundelay.strategies.asgd import ASGD
    from roundelay.strategies.asgd_updates import UpdatesASGD
    from roundelay.strategies.averaging import Averaging
    from roundelay.strategies.bmuf import BMUF
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
    from roundelay.strategy import Asynchronous, Strategy
    from roundelay.task import Task
    from roundelay.user_loop.joined_learner import JoinedLearner, join

__all__ = [
    "ADPSGD",
    "ASGD",
    "BMUF",
    "DPSGD",
    "EASGD",
    "SGP",
    "Asynchronous",
    "Averaging",
    "Communicator",
    "DelayByOne",
    "DiLoCo",
    "GossipPGA",
    "Hierarchical",
    "JoinedLearner",
    "Learner",
    "PairwiseADPSGD",
    "RandomADPSGD",
    "RoundelayError",
    "SlowMo",
    "Strategy",
    "Synchronous",
    "SynchronousEASGD",
    "Task",
    "UpdatesASGD",
    "__version__",
    "join",
]

_HOMES = {
    "ADPSGD": "strategies.adpsgd",
    "ASGD": "strategies.asgd",
    "Asynchronous": "strategy",
    "Averaging": "strategies.averaging",
    "BMUF": "strategies.bmuf",
    "Communicator": "communicator",
    "DPSGD": "strategies.dpsgd",
    "DelayByOne": "strategies.delay_by_one",
    "DiLoCo": "strategies.diloco",
    "EASGD": "strategies.easgd",
    "GossipPGA": "strategies.gossip_pga",
    "Hierarchical": "strategies.hierarchical",
    "JoinedLearner": "user_loop.joined_learner",
    "Learner": "learner",
    "PairwiseADPSGD": "strategies.adpsgd_pairwise",
    "RandomADPSGD": "strategies.adpsgd_random",
    "RoundelayError": "errors",
    "SGP": "strategies.sgp",
    "SlowMo": "strategies.slowmo",
    "Strategy": "strategy",
    "Synchronous": "strategies.synchronous",
    "SynchronousEASGD": "strategies.easgd_synchronous",
    "Task": "task",
    "UpdatesASGD": "strategies.asgd_updates",
    "join": "user_loop.joined_learner",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roundelay.{_HOMES[name]}"), name)

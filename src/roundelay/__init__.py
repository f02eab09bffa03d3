"""Train acoustic models for speech recognition on many learners at once.

Every parallel SGD strategy of the speech literature, behind one interface: written once, it runs on real processes,
under MPI, and on a simulated cluster.  `join` brings them to any PyTorch loop; `train`, `compare`, `plan` and `decode`
are what the commands of ``roundelay --help`` call; `simulate` trains any PyTorch
model on a simulated cluster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roundelay._version import __version__

if TYPE_CHECKING:
    from roundelay.communicator import Communicator
    from roundelay.errors import RoundelayError
    from roundelay.experiment.backends import RunOptions
    from roundelay.experiment.continuation import Replay, resume
    from roundelay.experiment.run_observer import RunObserver
    from roundelay.experiment.run_training import Run, train
    from roundelay.experiment.settings import Experiment
    from roundelay.learner import Learner
    from roundelay.optim.default_rules import apply_rule
    from roundelay.own_models.own_study import ModelComparison, compare
    from roundelay.own_models.program_replay import replay
    from roundelay.own_models.simulated_run import SimulatedRun, simulate
    from roundelay.planning.cluster_plan import ClusterPlan, plan
    from roundelay.runtimes.cluster import Cluster
    from roundelay.speech.decoding.split_decoding import decode_run as decode
    from roundelay.strategies import make_strategy
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
    from roundelay.study.scheduler import StudyComparison
    from roundelay.task import Task
    from roundelay.tasks.model_task import ModelTask
    from roundelay.user_loop.joined_learner import JoinedLearner, join
    from roundelay.user_loop.script_launcher import LaunchedRun, launch

__all__ = [
    "ADPSGD",
    "ASGD",
    "BMUF",
    "DPSGD",
    "EASGD",
    "SGP",
    "Asynchronous",
    "Averaging",
    "Cluster",
    "ClusterPlan",
    "Communicator",
    "DelayByOne",
    "DiLoCo",
    "Experiment",
    "GossipPGA",
    "Hierarchical",
    "JoinedLearner",
    "LaunchedRun",
    "Learner",
    "ModelComparison",
    "ModelTask",
    "PairwiseADPSGD",
    "RandomADPSGD",
    "Replay",
    "RoundelayError",
    "Run",
    "RunObserver",
    "RunOptions",
    "SimulatedRun",
    "SlowMo",
    "Strategy",
    "StudyComparison",
    "Synchronous",
    "SynchronousEASGD",
    "Task",
    "UpdatesASGD",
    "__version__",
    "apply_rule",
    "compare",
    "decode",
    "join",
    "launch",
    "make_strategy",
    "plan",
    "replay",
    "resume",
    "simulate",
    "train",
]

_HOMES = {
    "ADPSGD": "strategies.adpsgd",
    "ASGD": "strategies.asgd",
    "Asynchronous": "strategy",
    "Averaging": "strategies.averaging",
    "BMUF": "strategies.bmuf",
    "Cluster": "runtimes.cluster",
    "ClusterPlan": "planning.cluster_plan",
    "Communicator": "communicator",
    "StudyComparison": "study.scheduler",
    "DPSGD": "strategies.dpsgd",
    "DelayByOne": "strategies.delay_by_one",
    "DiLoCo": "strategies.diloco",
    "EASGD": "strategies.easgd",
    "Experiment": "experiment.settings",
    "GossipPGA": "strategies.gossip_pga",
    "Hierarchical": "strategies.hierarchical",
    "JoinedLearner": "user_loop.joined_learner",
    "LaunchedRun": "user_loop.script_launcher",
    "Learner": "learner",
    "ModelComparison": "own_models.own_study",
    "ModelTask": "tasks.model_task",
    "PairwiseADPSGD": "strategies.adpsgd_pairwise",
    "RandomADPSGD": "strategies.adpsgd_random",
    "Replay": "experiment.continuation",
    "RoundelayError": "errors",
    "Run": "experiment.run_training",
    "RunObserver": "experiment.run_observer",
    "RunOptions": "experiment.backends",
    "SGP": "strategies.sgp",
    "SimulatedRun": "own_models.simulated_run",
    "SlowMo": "strategies.slowmo",
    "Strategy": "strategy",
    "Synchronous": "strategies.synchronous",
    "SynchronousEASGD": "strategies.easgd_synchronous",
    "Task": "task",
    "UpdatesASGD": "strategies.asgd_updates",
    "apply_rule": "optim.default_rules",
    "compare": "own_models.own_study",
    "decode": "speech.decoding.split_decoding:decode_run",
    "join": "user_loop.joined_learner",
    "launch": "user_loop.script_launcher",
    "make_strategy": "strategies",
    "plan": "planning.cluster_plan",
    "replay": "own_models.program_replay",
    "resume": "experiment.continuation",
    "simulate": "own_models.simulated_run",
    "train": "experiment.run_training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"roundelay.{module}"), there or name)


def __dir__() -> list[str]:
    """Return the public names, those that are not imported yet too."""
    return sorted(__all__)

"""Every class of settings, values that any setting may be given by mistake, and small experiments to try them in."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import pkgutil
import sys
from typing import Any

import roundelay
from roundelay import config
from roundelay.errors import MissingExtra, RoundelayError
from roundelay.experiment.run_training import train
from roundelay.optim.schedules import SCHEDULES
from roundelay.strategies import STRATEGIES
from roundelay.strategies.compression import Compression
from roundelay.strategy import Strategy
from roundelay.task import Task

ODD: list[Any] = [
    math.nan, math.inf, -math.inf, 0, -1, 0.0, -1.0, 1, 0.5, 3, 1e-300, -1e308, 1e308, 10**15, 10**30, -(10**30),
    2**63, True, "fast", "", [], {}, [math.nan], [math.inf], [0], [-1], [10**30], ["fast"], [[]], {"fast": 1},
]  # fmt: skip
HUGE: list[Any] = [math.nan, -math.inf, 1e308, -1e308, 10**40, -(10**40)]
ROW: dict[str, Any] = {"strategy": "bmuf", "learners": 2}
NEEDED: dict[str, dict[str, Any]] = {
    "Row": ROW,
    "Quotient": {"of": ROW, "than": ROW},
    "Check": {"of": ROW, "than": ROW},
    "ExponentialDecay": {"frames": 10.0},
    "WarmupAnneal": {"warmup_frames": 10.0, "every_frames": 5.0},
    "Pauses": {"every_seconds": 1.0, "seconds": 0.1},
    "Straggler": {"learner": 0, "factor": 2.0},
    "SlowLink": {"learner": 0, "factor": 2.0},
    "Fault": {"learner": 0, "at_seconds": 1.0},
    "Stop": {"learner": 0, "at_seconds": 1.0, "seconds": 1.0},
    "NetworkPartition": {"learners": [0], "at_seconds": 1.0, "seconds": 1.0},
    "PlannedFault": {"what": "slow", "targets": [0]},
    "Budget": {"minibatches_per_epoch": 4, "total": 8},
    "Experiment": {"task": {"name": "tiny"}},
    "OwnExperiment": {"task": {"name": "tiny"}},
    "TargetSettings": {"value": 0.5},
    "Study": {"experiment": {}, "strategies": ["bmuf"], "target": {"value": 0.5}},
}
"""What a class must be given, by its name."""
OTHERS = {"Pruning", "Weights", "Windows", "FeatureSettings", "GmmSettings", "IvectorSettings", "LanguageSettings"}
OTHERS |= {"LexiconSettings", "PrepareSettings", "Decoding", "MomentumRamp", "FisherSettings"}
"""Classes of settings that have another base."""


def settings_classes() -> dict[str, type[Any]]:
    """Return every class of settings in the package, by its name."""
    for module in pkgutil.walk_packages(roundelay.__path__, "roundelay."):
        if "__main__" not in module.name:
            with contextlib.suppress(MissingExtra):  # what needs Lightning has no settings
                importlib.import_module(module.name)
    ours = [module for name, module in sys.modules.items() if name.startswith("roundelay.")]
    return {
        kind.__name__: kind
        for module in ours
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        if issubclass(kind, (config.Settings, Strategy, Task, Compression)) or kind.__name__ in OTHERS
        if kind.__module__.startswith("roundelay.")
    }


KINDS = settings_classes()


SMALL: dict[str, Any] = {
    "learners": 2,
    "task": {"name": "tiny", "frames_per_epoch": 64, "batch": 8, "hidden": [4]},
    "budget": {"minibatches": 4},
}
SECTIONS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    **{f"strategy {name}": (kind, {"name": name}) for name, kind in STRATEGIES.items()},
    **{f"schedule {name}": (kind, {"name": name} | NEEDED.get(kind.__name__, {})) for name, kind in SCHEDULES.items()},
    "task": (KINDS["Tiny"], SMALL["task"]),
    "budget": (KINDS["BudgetSettings"], {}),
    "batch": (KINDS["BatchSettings"], {}),
    "cluster": (KINDS["Cluster"], {}),
    "guard": (KINDS["GuardSettings"], {}),
    "keep": (KINDS["KeepSettings"], {}),
    "checkpoint": (KINDS["CheckpointSettings"], {}),
    "record": (KINDS["RecordSettings"], {}),
    "rate": (KINDS["RateSettings"], {"scale": "learners"}),
    "natural_gradient": (KINDS["NaturalGradientSettings"], {"rank_in": 2, "rank_out": 2}),
}
"""The tables of an experiment, each with its class and with what it must have."""
INSIDE = {"compute": "Compute", "intra_node": "NetworkLink", "compute.pauses": "Pauses"}
INSIDE |= {"stragglers": "Straggler", "faults": "Fault", "stops": "Stop", "slow_links": "SlowLink"}
"""The tables inside of a cluster."""


def trained(experiment: dict[str, Any]) -> bool:
    """Tell whether an experiment is valid; anything but an error of ours is a traceback."""
    try:
        train(experiment, on="simulator")
    except RoundelayError as error:
        return not str(error).strip()
    return True

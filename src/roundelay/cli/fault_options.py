"""The options by which ``roundelay train`` disturbs a run on purpose, and says what becomes of those who are lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.fault_plan import FaultPlan, parse

__all__ = ["HEARTBEAT_TIMEOUT", "fault_options", "parse_slow", "plan_of", "refuse_faults", "slowed"]

F = TypeVar("F", bound=Callable[..., Any])
REJOINS = 3
HEARTBEAT_TIMEOUT = 30.0


def fault_options(function: F) -> F:
    """Add the options."""
    for option in (
        click.option(
            "--faults", metavar="EVENTS", help='Disturb the run: "kill 1 at 30s; stop 2 for 10s at 5s; slow 0 x5".'
        ),
        click.option(
            "--rejoins", type=click.IntRange(0), default=REJOINS, show_default=True, metavar="N",
            help="Start a killed learner again, N times at most, to join the others.",
        ),
        click.option(
            "--heartbeat-timeout", type=click.FloatRange(0.05), metavar="SECONDS",
            help="How long a learner may be silent before the others go on without it; 30 by default.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def plan_of(options: dict[str, Any], experiment: Experiment) -> FaultPlan:
    """Read the options; those of a command that does not have them are as by default."""
    servers = experiment.strategy.servers
    text = options.get("faults")
    events = parse(text, experiment.learners, servers) if text else []
    return FaultPlan(events, servers, options.get("rejoins", REJOINS), options.get("heartbeat_timeout"))


def parse_slow(given: tuple[str, ...], learners: int) -> dict[int, float]:
    """Read what ``--slow`` gives: learners and by what factor each is slowed."""
    slow: dict[int, float] = {}
    for each in given:
        learner, _, factor = each.partition("=")
        try:
            slow[int(learner)] = float(factor)
        except ValueError:
            raise SettingsError(f"--slow {each}: expected LEARNER=FACTOR, as in --slow 3=10") from None
        if not 0 <= int(learner) < learners or float(factor) < 1:
            raise SettingsError(
                f"--slow {each}: a learner from 0 to {learners - 1} and a factor of at least 1 would do"
            )
    return slow


def slowed(cluster: Cluster, faults: FaultPlan | None = None) -> dict[str, float]:
    """Return how many times slower each learner that is slowed on purpose is, at worst, as ``run.json`` has it."""
    by_learner: dict[int, list[tuple[float, float, float]]] = {}
    for each in (faults or FaultPlan()).apply(cluster).stragglers:
        if each.learner >= 0:  # a server counts backwards
            by_learner.setdefault(each.learner, []).append((each.begin_seconds, each.end_seconds, each.factor))
    return {
        str(learner): max(math.prod(factor for begin, end, factor in own if begin <= now < end) for now, _, _ in own)
        for learner, own in sorted(by_learner.items())
    }


def refuse_faults(options: dict[str, Any], where: str) -> None:
    """Complain where there is nobody to do it."""
    if options.get("faults"):
        raise SettingsError(f"--faults: learners that {where} has started are not ours to disturb; use its own means")

"""The options of ``roundelay train`` for faults on purpose, slow learners and several hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roundelay.errors import SettingsError

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.experiment.settings import Experiment
    from roundelay.runtimes.fault_plan import FaultPlan
    from roundelay.runtimes.processes.hosts import Hosts

REJOINS = 3
"""`roundelay.experiment.backends.REJOINS`, without its imports."""

F = TypeVar("F", bound=Callable[..., Any])


def fault_options(function: F) -> F:
    """Add the options."""
    for option in (
        click.option(
            "--faults", metavar="EVENTS", help='Inject faults: "kill 1 at 30s; stop 2 for 10s at 5s; slow 0 x5".'
        ),
        click.option(
            "--rejoins", type=click.IntRange(0), default=REJOINS, show_default=True, metavar="N",
            help="Restart a killed learner at most N times.",
        ),
        click.option(
            "--heartbeat-timeout", type=click.FloatRange(0.05), metavar="SECONDS",
            help="Seconds without heartbeat until a learner counts as lost; default: 30.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def plan_of(text: str | None, experiment: Experiment, rejoins: int, heartbeat_timeout: float | None) -> FaultPlan:
    """Make the plan that the options ask for."""
    from roundelay.runtimes.fault_plan import FaultPlan, parse

    servers = experiment.strategy.servers
    events = parse(text, experiment.learners, servers) if text else []
    return FaultPlan(events, servers, rejoins, heartbeat_timeout)


def parse_slow(given: tuple[str, ...]) -> dict[int, float]:
    """Return the factor by which each learner is slowed, as ``--slow`` gives them."""
    slow: dict[int, float] = {}
    for each in given:
        learner, _, factor = each.partition("=")
        try:
            slow[int(learner)] = float(factor)
        except ValueError:
            raise SettingsError(f"--slow {each}: expected LEARNER=FACTOR, as in --slow 3=10") from None
    return slow


def hosts_of(rendezvous: str | None, count: int, token: str = "") -> Hosts | None:
    """Return the hosts that ``--rendezvous`` and ``--hosts`` name; None for this one alone."""
    if rendezvous is None:
        if count > 1:
            raise SettingsError(f"--hosts {count}: also give --rendezvous HOST:PORT, an address of the first host")
        return None
    from roundelay.runtimes.processes.hosts import Hosts

    return Hosts(rendezvous, count, token=token)

"""``roundelay plan``: rank strategies on a described cluster by simulated speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay import config
from roundelay.cli.screen.file_names import complete
from roundelay.cli.screen.plain_tables import wide_option
from roundelay.errors import SettingsError
from roundelay.planning.cluster_profiles import PROFILES, find_cluster, profile_names

MANY = 256  # learners; with more, sensitivity takes minutes and is off by default
EPILOG = """\b
Examples:
  roundelay plan --list
  roundelay plan v100-ethernet --learners 16 --learners 64
  roundelay plan cluster.toml --learners 128 --strategy hierarchical --strategy delay-by-one
  roundelay plan cluster.toml --set bmuf.block=100 --hours 300
  roundelay plan cluster.toml --record runs/study --target loss=1.2
  roundelay calibrate runs/two --out here.toml && roundelay plan here.toml --learners 128
"""


@click.command(epilog=EPILOG)
@click.argument("cluster", required=False, shell_complete=complete("cluster"))
@click.option("--learners", "sizes", multiple=True, type=int, help="May be repeated; default: the cluster's size.")
@click.option("--strategy", "names", multiple=True, help="May be repeated; default: the nine of the papers.")
@click.option("--all", "everything", is_flag=True, help="Plan all strategies.")
@click.option("--set", "assignments", multiple=True, metavar="STRATEGY.KEY=VALUE", help="Change a hyperparameter.")
@click.option("--record", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A run or a study that shows how many frames a target takes.")  # fmt: skip
@click.option("--target", metavar="SCORE=VALUE", help="Target, as loss=1.2; a study has its own.")
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    help="Hours of speech in an epoch, to show the time of an epoch.",
)
@click.option("--change", type=float, default=2.0, show_default=True, help="Factor by which assumptions are changed.")
@click.option("--sensitivity/--no-sensitivity", "look", default=None,
              help=f"Change each assumption; by default for up to {MANY} learners.")  # fmt: skip
@wide_option
@click.option("--list", "listing", is_flag=True, help="List the included profiles.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(cluster: str | None, **options: Any) -> None:
    """Rank strategies on CLUSTER, a TOML file or a profile's name, by simulated speed."""
    if options["listing"]:
        _list(as_json=options["as_json"])
        return
    if cluster is None:
        raise SettingsError(f"plan needs a cluster: a TOML file, or one of {', '.join(profile_names())}")
    if not options["change"] > 1:
        raise SettingsError(f"--change must be above 1, not {options['change']:g}")
    described = find_cluster(cluster)
    from roundelay.cli.screen.plan_output import plain, planning_bar, show  # with torch
    from roundelay.planning.cluster_plan import num_learners, plan
    from roundelay.planning.ranking import PAPERS
    from roundelay.strategies import STRATEGIES

    sizes = options["sizes"] or (num_learners(described),)
    look = options["look"] if options["look"] is not None else sizes[-1] <= MANY
    with planning_bar() as progress:
        made = plan(
            described,
            learners=sizes,
            strategies=options["names"] or (sorted(STRATEGIES) if options["everything"] else PAPERS),
            settings=dict(config.parse_assignment(each) for each in options["assignments"]),
            record=options["record"],
            target=options["target"],
            factors=(1 / options["change"], options["change"]) if look else (),
            progress=progress,
        )
    if options["as_json"]:
        click.echo(json.dumps(plain(made)))
    else:
        show(made, hours=options["hours"], wide=options["wide"])


def _list(*, as_json: bool) -> None:
    found = {name: find_cluster(name) for name in profile_names()}
    if as_json:
        click.echo(json.dumps({"folder": str(PROFILES), "profiles": {n: config.plain(c) for n, c in found.items()}}))
        return
    for name, cluster in found.items():
        click.echo(f"{name}: {cluster.name}\n  {cluster.source}")

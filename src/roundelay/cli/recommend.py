"""``roundelay recommend``: one strategy for a cluster and a task, the command to type, and why."""

from __future__ import annotations

import json
from typing import Any

import click

EPILOG = """\b
Examples:
  roundelay recommend v100-ethernet --learners 16 --hours 300
  roundelay recommend cluster.toml --hours 2000 --epochs 20 --minibatch 2560 --optimizer SGD
"""


@click.command(epilog=EPILOG)
@click.argument("cluster")
@click.option("--learners", type=click.IntRange(1), help="Default: the cluster's size.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), required=True, help="Hours of speech in an epoch.")
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@click.option("--minibatch", type=click.IntRange(1), help="Frames of one learner; default: the cluster's.")
@click.option("--optimizer", default="AdamW", show_default=True, help="Its name in torch.optim.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(cluster: str, *, as_json: bool, **options: Any) -> None:
    """Recommend one strategy for CLUSTER, a TOML file or a profile's name (`roundelay plan --list`).

    Strategies are timed in the simulator, with the settings of their default rules.  Of those that are nearly as fast
    as the fastest, it is the one with the lowest error in the studies of docs/results.md.
    """
    from roundelay.planning.recommendation import recommend  # with torch

    found = recommend(cluster, **options)
    if as_json:
        click.echo(json.dumps(found.plain()))
        return
    click.echo(f"Use {found.strategy}:\n  {found.command}")
    click.echo(f"It sets: {found.choice.line}." if found.choice.line else "One learner needs no rule.")
    for line in found.reasons:
        click.echo(line)

"""``roundelay calibrate``: measure a cluster from a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from roundelay import config
from roundelay.files import finite_json, write_text
from roundelay.planning.assumptions import say_bytes, say_seconds
from roundelay.planning.calibration import Calibration, calibrate

EPILOG = """\b
Examples:
  roundelay train tiny --out runs/two --learners 2 --set budget.minibatches=100
  roundelay calibrate runs/two --out here.toml
  roundelay plan here.toml --learners 128
"""
DEFAULTS = {
    "stops",
    "partitions",
    "slow_links",
    "faults",
    "stragglers",
    "heartbeat_timeout",
    "detection_seconds",
    "inter_node",
}


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Output file; default: standard output.")
@click.option("--trace", type=click.IntRange(min=0), default=0, show_default=True, metavar="COUNT",
              help="Keep up to COUNT measured durations instead of their median and jitter.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path, out: Path | None, trace: int, *, as_json: bool) -> None:
    """Describe the cluster of RUN, the folder of a recorded run; 50 steps of each learner are enough."""
    found = calibrate(run, trace=trace)
    text = _toml(found, run)
    if out is not None:
        write_text(out, text)
    if as_json:
        said = vars(found) | {"cluster": config.plain(found.cluster), "out": str(out) if out is not None else None}
        click.echo(json.dumps(finite_json(said)))
        return
    if out is None:
        click.echo(text, nl=False)
    for line in _lines(found):
        click.echo(line, err=out is None)
    if out is not None:
        click.echo(
            f"{out}: written; try 'roundelay plan {out} --learners 128' or 'roundelay train ... --cluster {out}'"
        )


def _lines(found: Calibration) -> list[str]:
    cluster, seconds = found.cluster, {name: say_seconds(value) for name, value in found.measured.items()}
    return [
        f"{found.learners} learners, {found.steps} steps of {seconds['step']} (median): {seconds['own']} own work "
        f"({seconds['gradient']} gradient), {seconds['copying']} copying, {seconds['moving']} network",
        f"jitter {cluster.compute.jitter:.2g}, model {say_bytes(cluster.model_bytes or 0)}, "
        f"{cluster.frames} frames per minibatch",
        *(f"note: {note}" for note in found.notes),
    ]


def _toml(found: Calibration, run: Path) -> str:
    """Write the description as TOML, without defaults, with its source in a comment."""
    table = config.plain(found.cluster)
    assert isinstance(table, dict)
    kept = {name: value for name, value in table.items() if name not in DEFAULTS and value is not None}
    kept["copy_bandwidth"] = kept["copy_bandwidth"] if found.measured["copying"] > 0 else None
    notes = "".join(f"# {note}\n" for note in found.notes)
    head = f"# Made from {run} by 'roundelay calibrate'.\n{notes}"
    return head + config.dump({name: value for name, value in kept.items() if value is not None})

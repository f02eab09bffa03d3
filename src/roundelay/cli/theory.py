"""``roundelay theory``: how fast topologies mix, and the terms of a bound for AD-PSGD."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from roundelay.errors import SettingsError
from roundelay.files import write_text
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import TOPOLOGIES, find_topology
from roundelay.theory.consensus import Consensus, consensus, curve, noise_gain, pairwise
from roundelay.theory.convergence import ASSUMPTIONS, Convergence, Problem, convergence
from roundelay.theory.plot import svg, terminal

MOST = 256  # learners: matrices of this many rows and columns are multiplied
NOTES = (
    "contraction: factor of the distance from the mean per iteration, by formula (* by eigenvalues); gap: 1 minus it",
    "in pairs: factor of the squared distance for n/2 averages over random links, as in the paper of AD-PSGD",
    "rate: the term of SGD; staleness, network: terms of stale gradients and of incomplete mixing",
    "linear from: the iteration from which these two are smaller than the rate: the speed-up is linear",
)
EPILOG = """\b
Examples:
  roundelay theory --topology ring --learners 16
  roundelay theory --learners 8 --learners 64
  roundelay theory --topology ring --topology random-ring --learners 64 --svg mixing.svg
  roundelay theory --topology ring --learners 32 --staleness 4 --iterations 50000 --json
"""


@dataclasses.dataclass(frozen=True)
class TopologyRow:
    """The results for one topology and one number of learners."""

    consensus: Consensus
    pairs: float
    gain: float
    convergence: Convergence
    curve: list[float]

    def plain(self) -> dict[str, Any]:
        """Return the results for JSON."""
        known = self.consensus
        return {
            **dataclasses.asdict(known),
            "gap": known.gap,
            "pairwise_mean_square": self.pairs,
            "noise_gain": self.gain,
            "convergence": dataclasses.asdict(self.convergence) | {"total": self.convergence.total},
        }


@click.command(epilog=EPILOG)
@click.option("--topology", "names", multiple=True, metavar="NAME", help="May be repeated; default: all.")
@click.option("--learners", "sizes", multiple=True, type=int, default=(16,), show_default=True, help="May be repeated.")
@click.option("--iterations", type=int, default=10_000, show_default=True, help="K: steps of every learner.")
@click.option("--staleness", type=float, default=1.0, show_default=True, help="tau: age of gradients in steps.")
@click.option("--rate", type=float, help="gamma: learning rate; default: the best one for SGD.")
@click.option("--smoothness", type=float, default=1.0, show_default=True, help="L: smoothness of the loss.")
@click.option(
    "--noise", type=float, default=1.0, show_default=True, help="s: standard deviation of a learner's gradient."
)
@click.option(
    "--distance", type=float, default=1.0, show_default=True, help="f0 - f*: from the first loss to the lowest."
)
@click.option("--svg", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Also write a figure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(names: Sequence[str], sizes: Sequence[int], **options: Any) -> None:
    """Show how fast topologies reach a consensus, and the effect on AD-PSGD."""
    problem = Problem(options["distance"], options["smoothness"], options["noise"])
    for size in sizes:
        if not 2 <= size <= MOST:
            raise SettingsError(f"--learners must be from 2 to {MOST}, not {size}")
    for name in names:
        for size in sizes:
            find_topology(name).check(size)
    wanted = [(name, size) for size in sizes for name in names or sorted(TOPOLOGIES) if find_topology(name).fits(size)]
    watched = track(wanted, "mixing", console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    rows = [_row(name, size, options, problem) for name, size in watched]
    known = [(f"{row.consensus.topology} {row.consensus.learners}", row) for row in rows]
    curves = {title if len(sizes) > 1 else row.consensus.topology: row.curve for title, row in known}
    if options["picture"] is not None:
        write_text(options["picture"], svg(curves, title="Consensus distance, mixing alone"))
    if options["as_json"]:
        print(json.dumps({"topologies": [row.plain() for row in rows], "assumptions": ASSUMPTIONS}))
    else:
        _show(rows, curves)


def _row(name: str, size: int, options: dict[str, Any], problem: Problem) -> TopologyRow:
    mixing = Mixing(find_topology(name))
    gain = noise_gain(mixing, size)
    return TopologyRow(
        consensus=consensus(mixing, size),
        pairs=pairwise(mixing.topology, size),
        gain=gain,
        convergence=convergence(
            gain,
            size,
            iterations=options["iterations"],
            staleness=options["staleness"],
            rate=options["rate"],
            problem=problem,
        ),
        curve=curve(mixing, size, 400),
    )


def _show(rows: Sequence[TopologyRow], curves: dict[str, list[float]]) -> None:
    console = Console(highlight=False, markup=False)
    for size in sorted({row.consensus.learners for row in rows}):
        these = [row for row in rows if row.consensus.learners == size]
        console.print(f"Mixing, {size} learners")
        console.print(_mixing_table(these))
        console.print(f"AD-PSGD, {size} learners, {these[0].convergence.iterations} iterations: shape of the bound")
        console.print(_convergence_table(these))
    console.print("Consensus distance, mixing alone")
    console.print(terminal(curves), soft_wrap=True)
    for heading, lines in (("Columns", NOTES), ("Assumptions of the lower table", ASSUMPTIONS)):
        console.print(f"\n{heading}")
        for line in lines:
            console.print(f"- {line}")


def _mixing_table(rows: Sequence[TopologyRow]) -> Table:
    table = _table("topology", "sends", "contraction", "measured", "gap", "1 % after", "in pairs")
    for row in rows:
        known = row.consensus
        table.add_row(
            known.topology,
            f"{known.degree:.3g}",
            f"{known.contraction:.4f}{' ' if known.by_formula else '*'}",
            f"{known.measured:.4f}",
            f"{known.gap:.4f}",
            f"{known.steps:.4g}" if known.exact_after is None else f"mean at {known.exact_after}",
            f"{row.pairs:.4f}",
        )
    return table


def _convergence_table(rows: Sequence[TopologyRow]) -> Table:
    table = _table("topology", "gamma", "rate", "staleness", "network", "sum", "linear from")
    for row in rows:
        terms = row.convergence
        figures = (terms.rate, terms.start + terms.noise, terms.staleness, terms.network, terms.total)
        table.add_row(row.consensus.topology, *(f"{figure:.2g}" for figure in figures), f"{terms.speedup_from:.2g}")
    return table


def _table(first: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table

"""The output of ``roundelay plan``: a bar while it simulates, tables, JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from roundelay import config
from roundelay.cli.screen.plain_tables import fits, keep_whole, plain_console, plain_table
from roundelay.cli.screen.progress_bars import ProgressDisplay
from roundelay.cli.screen.time_left import TimeLines
from roundelay.files import finite_json
from roundelay.planning.assumptions import assumptions_of, say_bytes, say_seconds
from roundelay.planning.cluster_plan import ClusterPlan
from roundelay.planning.frames_to_target import Needed
from roundelay.planning.plan_text import answer, say_effect, say_factor
from roundelay.planning.ranking import Effect, RankedStrategy, Ranking, moved
from roundelay.report.number_format import count

FRAMES_PER_HOUR = 360_000
WIDTH = 110  # without a terminal
LEAST_BOTTLENECK = 16  # columns


@contextlib.contextmanager
def planning_bar() -> Iterator[Callable[[str, int], None]]:
    """Show a bar on a terminal, elsewhere how long it takes; what is yielded moves it, before each simulation."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    with ProgressDisplay(*columns) as display:
        task = display.progress.add_task("planning", total=None)
        lines: list[TimeLines] = []
        begun = 0

        def show(what: str, total: int) -> None:
            nonlocal begun
            display.progress.update(task, description=what[:40], completed=begun, total=total)
            if display.progress.disable:
                if not lines:
                    display.console.print(f"planning: {total} simulations on one core")
                    lines.append(TimeLines("planning", total, display.console.print, time.monotonic))
                lines[0].update(begun)
            begun += 1

        yield show


def plain(made: ClusterPlan) -> dict[str, Any]:
    """Return plans and their assumptions for JSON."""
    plans, effects, target, needed = made.rankings, made.effects, made.target, made.needed
    cluster = plans[0].cluster
    assumed = [
        {"assumption": each.name, "value": each.value(cluster), "said": each.describe(cluster)}
        for each in assumptions_of(cluster)
    ]
    whole = {
        "cluster": config.plain(cluster),
        "by": plans[0].by,
        "target": target,
        "record": {name: dataclasses.asdict(each) for name, each in (needed or {}).items()},
        "assumptions": assumed,
        "plans": [
            {"learners": plan.learners, "strategies": [row.plain() for row in plan.rows], "skipped": plan.skipped}
            for plan in plans
        ],
        "sensitivity": [
            {
                "assumption": effect.assumption,
                "changes": [
                    {
                        "factor": factor,
                        "throughput": shares,
                        "order": effect.orders[factor],
                        "moved": moved(plans[-1].order, effect.orders[factor]),
                    }
                    for factor, shares in effect.throughput.items()
                ],
            }
            for effect in effects
        ],
        "answer": [line for plan in plans for line in answer(plan)],
    }
    finite: dict[str, Any] = finite_json(whole)
    return finite


def show(made: ClusterPlan, *, hours: float | None, wide: bool = False) -> None:
    """Print plans and their assumptions."""
    plans, effects, target, needed = made.rankings, made.effects, made.target, made.needed
    console = plain_console(wide=wide, pipe=WIDTH)
    cluster = plans[0].cluster
    for plan in plans:
        console.print(f"\n{cluster.name}, {plan.learners} learners", style="bold")
        for line in answer(plan):
            console.print(line)
        console.print()
        _print_table(console, plan, hours)
        for name, reason in plan.skipped.items():
            console.print(f"{name}: not planned, {reason}")
    if target is not None:
        console.print(f"\nTarget: {target['score']} at most {target['value']:g}, frames from the record")
        for line in _recorded(needed or {}, plans[-1].learners):
            console.print(f"- {line}")
    console.print("\nAssumptions", style="bold")
    if cluster.source:
        console.print(f"from: {cluster.source}")
    console.print(_assumptions(plans[-1], effects))
    for line in _notes(plans[-1], effects):
        console.print(f"- {line}")


def _print_table(console: Console, plan: Ranking, hours: float | None) -> None:
    """Print a row per strategy; on a narrow terminal the bottlenecks are a table of their own."""
    whole = keep_whole(_table(plan, hours, bottleneck=True))
    if fits(console, whole):
        console.print(whole)
        return
    console.print(keep_whole(_table(plan, hours, bottleneck=False)))
    below = plain_table("strategy", "bottleneck")
    for row in plan.rows:
        below.add_row(row.strategy, _bottleneck(row))
    console.print()
    console.print(keep_whole(below))


def _table(plan: Ranking, hours: float | None, *, bottleneck: bool) -> Table:
    timed = any(row.target_seconds is not None for row in plan.rows)
    extra = [*(["to target"] if timed else []), *(["epoch"] if hours else [])]
    numbers = (*extra, "frames/s", "speed-up", "step", "idle", "sent/step")
    last = ["bottleneck"] if bottleneck else []
    table = plain_table("", "strategy", *numbers, *last, names=2, right=("", *numbers))
    table.padding = (0, 1, 0, 0)
    if bottleneck:
        table.columns[-1].min_width = LEAST_BOTTLENECK
    for place, row in enumerate(plan.rows, 1):
        timing = row.timing
        extras = []
        if timed:
            extras.append(say_seconds(row.target_seconds) if row.target_seconds is not None else "-")
        if hours:
            extras.append(say_seconds(timing.epoch_seconds(hours * FRAMES_PER_HOUR, plan.cluster.epoch_seconds)))
        table.add_row(
            str(place), row.strategy, *extras, f"{timing.frames_per_second:,.0f}", f"{row.speedup:.1f}",
            say_seconds(timing.step_seconds), f"{timing.idle:.0%}", say_bytes(timing.bytes_per_step),
            *([_bottleneck(row)] if bottleneck else []),
        )  # fmt: skip
    return table


def _bottleneck(row: RankedStrategy) -> str:
    return f"{row.timing.bottleneck} ({row.timing.busy[row.timing.bottleneck]:.0%})"


def _assumptions(plan: Ranking, effects: Sequence[Effect]) -> Table:
    if not effects:
        table = plain_table("assumption", "value", right=("value",))
        for each in assumptions_of(plan.cluster):
            table.add_row(each.name, each.describe(plan.cluster))
        return keep_whole(table)
    factors = [say_factor(factor) for factor in effects[0].orders]
    table = plain_table("assumption", "value", *factors, "change of the ranking", right=("value", *factors))
    table.padding = (0, 1, 0, 0)
    for effect in effects:
        first = plan.order[0]
        shares = [f"{each[first] - 1:+.0%}" if first in each else "-" for each in effect.throughput.values()]
        table.add_row(effect.assumption, effect.value, *shares, say_effect(effect, plan.order))
    return keep_whole(table)


def _notes(plan: Ranking, effects: Sequence[Effect]) -> list[str]:
    notes = [
        "speed-up: over one learner. idle: share of learners' time without a gradient. sent/step: bytes per step of a "
        "learner, with replies. bottleneck: the resource that is busy for the largest share of time, and that share",
        "averages over steps in the steady state, simulated with the strategies' own files; start, evaluation and "
        "reading data are not included",
    ]
    if effects:
        notes.append(f"the two columns show how the speed of {plan.order[0]} changes with this one number")
    else:
        notes.append("use --sensitivity to change each assumption; this takes minutes with many learners")
    if plan.by == "frames per second":
        notes.append(
            "ranked by frames per second; strategies may need different numbers of frames for the same loss: use "
            "--record RUN or STUDY to rank by time to a target"
        )
    return notes


def _recorded(needed: dict[str, Needed], learners: int) -> list[str]:
    lines = []
    for name, each in sorted(needed.items()):
        said = f"{each.frames:,.0f} frames" if each.frames is not None else "not reached"
        missed = f", {each.missed} missed" if each.missed else ""
        other = "" if each.learners == (learners,) else f"; recorded with {', '.join(map(str, each.learners))} learners"
        lines.append(f"{name}: {said} (median of {count(each.runs, 'run')}{missed}){other}")
    return lines

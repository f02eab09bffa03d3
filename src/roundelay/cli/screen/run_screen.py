"""What ``roundelay watch`` shows of a run: curves, numbers, and what each learner's time is spent on."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from roundelay.cli.screen.text_plots import bar, curve
from roundelay.cli.screen.time_left import TimeLeft, say_duration
from roundelay.cli.screen.training_display import figures, say_speed
from roundelay.runs.follower import Follower, LearnerActivity
from roundelay.runs.reader import member_order

SMALL = 3  # lines of a curve, at least
KINDS = {"compute": "green", "communicate": "blue", "wait": "yellow", "serve": "magenta", "evaluate": "cyan"}
LETTERS = {"compute": "█", "communicate": "▓", "wait": "░", "serve": "▒", "evaluate": "▚"}
CELL = 26  # columns of a learner among many
TALL = 200  # lines, if all may be shown


def draw(follower: Follower, width: int, height: int = TALL, time_left: TimeLeft | None = None) -> Group:
    """Draw the state of a run for a terminal of this size."""
    title = Text(follower.title, style="bold")
    parts: list[Any] = [title, Text(state(follower, time_left))]
    if not follower.losses:
        return Group(*parts, Text("no events yet"))
    name = "error" if any("error" in event for event in follower.scores) else "loss"
    held = [(event["frames"], event[name]) for event in follower.scores if name in event]
    # title and state (perhaps of two lines), the curve's heading, scores (likewise), legend, events
    others = 6 + 2 * bool(follower.scores) + len(follower.events[-3:]) + bool(follower.unreadable)
    learners, rows = _learners(follower, width, height - others)
    left = height - others - rows
    tall, low = (8, 4) if left >= 13 else (left - SMALL - 1, SMALL) if left > 2 * SMALL + 2 else (max(SMALL, left), 0)
    room = max(20, width - 12)
    parts += [Text("training loss by frames", style="dim")]
    parts += [Text(line, no_wrap=True) for line in curve(follower.losses, room, tall)]
    if len(held) > 1 and low:
        parts += [Text(f"held-out {name}", style="dim")]
        parts += [Text(line, no_wrap=True) for line in curve(held, room, low)]
    if follower.scores:
        parts.append(Text(evaluation_line(follower.scores[-1])))
    parts += [*learners, _legend()]
    parts += [Text(_event(event), style="red") for event in follower.events[-3:]]
    if follower.unreadable:
        parts.append(Text(f"{follower.unreadable} lines of the record cannot be read", style="red"))
    return Group(*parts)


def state(follower: Follower, time_left: TimeLeft | None = None) -> str:
    """Say in one line how far a run is; what is not known yet is left out."""
    done = f"minibatch {follower.steps}" + (f"/{follower.total}" if follower.total else "")
    words = ["finished" if follower.finished else "running", done]
    if not follower.finished and follower.silent_seconds > 60 and follower.losses:
        words[0] = f"no update for {say_duration(follower.silent_seconds)}"
    elif not follower.losses:
        words[0] = "finished" if follower.finished else "waiting for the first step"
    if math.isfinite(follower.loss):
        words.append(f"loss {follower.loss:.4f}")
    if follower.losses:
        words += [say_speed(follower.speed), f"{follower.seconds:.1f} s {follower.clock}"]
    if not follower.finished and time_left is not None and time_left.left is not None:
        words.append(str(time_left))
    return "  ".join(words)


def evaluation_line(event: dict[str, Any]) -> str:
    """Say in one line what an evaluation came to."""
    words = [f"epoch {event.get('epoch', 0):.3g}", f"minibatch {event['minibatch']}"]
    known = {name: event[name] for name in ("loss", "error", "distance") if isinstance(event.get(name), int | float)}
    return "  ".join([*words, *figures(known), f"{event['time']:.3f} s {event.get('clock', '')}"])


def _event(event: dict[str, Any]) -> str:
    reason = event.get("reason") or event.get("kind") or ""
    return f"{event['time']:.3f} s  {event['event']}  {event['member']}  {reason}"


def _learners(follower: Follower, width: int, room: int) -> tuple[list[Any], int]:
    """Draw a line per learner; if they are too many for the screen, several in a line; return also the lines."""
    members = sorted(follower.learners.items(), key=lambda pair: member_order(pair[0]))
    if len(members) + 1 + SMALL <= room:
        return [_tall_rows(members, width)], len(members) + 1
    columns = max(1, width // CELL)
    rows = max(1, min(math.ceil(len(members) / columns), room - 1 - SMALL))
    heading = Text("learner, its steps, and what its time is spent on", style="dim")
    return [heading, _compact_rows(members, rows, columns)], rows + 1


def _tall_rows(members: list[tuple[str, LearnerActivity]], width: int) -> Table:
    most = max((each.steps for _, each in members), default=1) or 1
    name = max((len(member) for member, _ in members), default=7)
    room = max(10, (width - name - 12) // 2)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("", "steps", "", "what its time is spent on", style="dim")
    for member, each in members:
        table.add_row(member, str(each.steps), bar(each.steps / most, room), _shares(each.spent, room))
    return table


def _compact_rows(members: list[tuple[str, LearnerActivity]], rows: int, columns: int) -> Table:
    """Draw the learners in columns, each by its number, its steps and its time; say how many do not fit."""
    table = Table.grid(padding=(0, 1))
    cells = [_cell(member, each) for member, each in members]
    hidden = max(0, len(cells) - rows * columns)
    if hidden:
        cells = [*cells[: rows * columns - 1], Text(f"and {hidden + 1} more")]
    for row in range(rows):
        table.add_row(*cells[row::rows])
    return table


def _cell(member: str, each: LearnerActivity) -> Text:
    short = member.removeprefix("learner ")
    text = Text(f"{short:>3} {each.steps:>6} ", no_wrap=True)
    return text.append(_shares(each.spent, CELL - 2 - len(text)))


def _shares(spent: dict[str, float], width: int) -> Text:
    """Draw the time by kind; each kind has its own pattern, so that no colour is needed."""
    whole, text, drawn = sum(spent.values()), Text(), 0
    done = 0.0
    for kind, colour in KINDS.items():
        done += spent.get(kind, 0.0)
        count = round(width * done / whole) - drawn if whole else 0
        text.append(LETTERS[kind] * count, style=colour)
        drawn += count
    return text


def _legend() -> Text:
    text = Text()
    for kind, colour in KINDS.items():
        text.append(f"{LETTERS[kind]} ", style=colour)
        text.append(f"{kind}  ")
    return text

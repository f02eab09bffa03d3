"""How long it still takes, in few words."""

from __future__ import annotations

import pytest

from roundelay.cli.screen.time_left import TimeLeft, TimeLines, say_duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (42.4, "42 s"), (100, "2 min"), (3600, "1 h"), (4800, "1 h 20 min"), (100_000, "27 h")],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert say_duration(seconds) == said


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_speed_since_the_first_count_gives_the_rest() -> None:
    clock = Clock()
    left = TimeLeft(50, clock)
    left.update(10)  # of an earlier session: its time is not known
    assert (left.left, str(left)) == (None, "")
    clock.now += 4
    left.update(18)
    assert left.left == pytest.approx(16)
    assert left.all == pytest.approx(20)
    assert str(left) == "about 16 s left"
    left.update(50)
    assert left.left == 0


def test_nothing_is_said_about_what_is_too_short_to_be_measured() -> None:
    clock = Clock()
    left = TimeLeft(10, clock)
    for done in range(5):
        clock.now += 0.01
        left.update(done)
    assert left.left is None


def test_without_a_terminal_a_line_now_and_then() -> None:
    clock, said = Clock(), list[str]()
    lines = TimeLines("planning", 100, said.append, clock)
    for done in range(101):
        lines.update(done)
        clock.now += 1
    assert said == [
        "planning: about 2 min in all",
        "planning: 31%, about 69 s left",
        "planning: 61%, about 39 s left",
        "planning: 91%, about 9 s left",
    ]

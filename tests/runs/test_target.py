"""When a target is first reached."""

from __future__ import annotations

from roundelay.runs.target import Point, Target, first_reached


def points(*losses: float) -> list[Point]:
    return [
        Point(frames=100.0 * k, minibatch=k, seconds=float(k), scores={"loss": loss}) for k, loss in enumerate(losses)
    ]


def test_the_first_evaluation_at_or_below_the_target_counts() -> None:
    reached = first_reached(points(3.0, 2.0, 1.0, 2.5), Target(score="loss", value=2.0))
    assert reached is not None
    assert (reached["minibatch"], reached["frames"]) == (1, 100.0)


def test_a_target_that_is_missed_or_has_another_score() -> None:
    assert first_reached(points(3.0, 2.0), Target(score="loss", value=1.0)) is None
    assert first_reached(points(3.0, 2.0), Target(score="error", value=9.0)) is None
    assert first_reached([], Target(score="loss", value=1.0)) is None

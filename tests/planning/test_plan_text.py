"""A plan in sentences."""

from __future__ import annotations

from roundelay.planning.assumptions import say_bytes, say_seconds
from roundelay.planning.plan_text import answer, say_effect, say_factor
from roundelay.planning.ranking import Effect, RankedStrategy, Ranking, moved
from roundelay.planning.timing import Timing
from roundelay.runtimes.cluster import Cluster


def row(name: str, frames_per_second: float, target_seconds: float | None = None) -> RankedStrategy:
    timing = Timing(4, 0, 0.1, frames_per_second, {"compute": 0.9}, 1e6, {"computing": 0.9}, "computing")
    return RankedStrategy(name, timing, frames_per_second / 100, target_seconds)


def plan(*rows: RankedStrategy) -> Ranking:
    return Ranking(Cluster(), 4, list(rows), "frames per second")


def test_the_fastest_strategy_and_its_bottleneck() -> None:
    first, second = answer(plan(row("easgd", 400.0), row("bmuf", 200.0)))
    assert first == "easgd is fastest: 400 frames/s, 4.0 times one learner. Next is bmuf, 2.00 times slower."
    assert second == "Bottleneck: computing, busy 90% of the time."


def test_strategies_that_are_about_as_fast() -> None:
    said = answer(plan(row("easgd", 400.0), row("bmuf", 399.0), row("adpsgd", 398.0), row("asgd", 100.0)))[0]
    assert said.endswith("bmuf and adpsgd are about as fast.")


def test_time_to_target_counts_if_it_is_known() -> None:
    said = answer(plan(row("bmuf", 200.0, 10.0), row("easgd", 400.0, 15.0), row("asgd", 500.0)))[0]
    assert said.startswith("bmuf reaches the target first, in 10 s (200 frames/s, 2.0 times one learner).")
    assert said.endswith("Next is easgd, 1.50 times slower.")


def test_no_strategy_can_run() -> None:
    assert answer(plan()) == ["No strategy can run on this cluster."]


def test_effects_of_an_assumption() -> None:
    order = ["a", "b", "c"]
    effect = Effect("latency", "1 ms", {}, {0.5: ["a", "b", "c"], 2.0: ["b", "a", "c"]})
    assert say_effect(effect, order) == "x 2: b first"
    assert {factor: order[0] for factor, order in effect.orders.items()} == {0.5: "a", 2.0: "b"}
    assert say_effect(Effect("latency", "1 ms", {}, {0.5: ["a", "c", "b"]}), order) == "/ 2: b down 1, c up 1"
    assert say_effect(Effect("latency", "1 ms", {}, {0.5: order}), order) == "nothing"
    assert moved(order, ["c", "a"]) == ["c up 2", "a down 1"]
    assert (say_factor(0.5), say_factor(1.25)) == ("/ 2", "x 1.25")


def test_units() -> None:
    assert [say_seconds(s) for s in (1e-7, 2e-5, 3e-3, 4.0, 500.0, 1e4)] == [
        "0.1 us",
        "20 us",
        "3 ms",
        "4 s",
        "8.33 min",
        "2.78 h",
    ]
    assert [say_bytes(b) for b in (1.0, 2e3, 3e6, 4e9, 5e12)] == ["1 B", "2 kB", "3 MB", "4 GB", "5 TB"]

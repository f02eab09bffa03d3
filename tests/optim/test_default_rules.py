"""Default rules choose what N learners need, keep what the user has set, and say why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from roundelay.errors import SettingsError
from roundelay.optim.default_rules import RULES, RuleConditions, apply_rule, choose, unscaled_hint
from roundelay.strategies import STRATEGIES, Averaging, Hierarchical, Synchronous
from roundelay.strategies.adpsgd import ADPSGD
from roundelay.strategies.bmuf import BMUF
from roundelay.strategies.easgd import EASGD
from roundelay.strategy import Strategy

LONG, SHORT = 1_000_000, 386


def chosen(name: str, given: dict[str, Any] | None = None, **conditions: Any) -> tuple[float, dict[str, Any]]:
    given = given or {}
    choice = choose(STRATEGIES[name](**given), given, RuleConditions(**({"learners": 16, "steps": LONG} | conditions)))
    return choice.factor, choice.settings


def adam(rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(nn.Linear(2, 1).parameters(), lr=rate)


def test_every_strategy_has_a_rule() -> None:
    assert RULES.keys() == STRATEGIES.keys()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_one_learner_keeps_everything(name: str) -> None:
    choice = choose(STRATEGIES[name](), {}, RuleConditions(1, SHORT, adaptive=True))
    assert (choice.factor, choice.settings, choice.warmup_steps, choice.line) == (1.0, {}, 0, "")


@pytest.mark.parametrize(
    ("name", "sgd", "adam"),
    [
        ("synchronous", 16, 16), ("averaging", 16, 32), ("delay-by-one", 16, 32), ("adpsgd", 16, 32),
        ("adpsgd-random", 16, 32), ("easgd", 16, 32), ("bmuf", 1, 2), ("asgd", 1, 2), ("gossip-pga", 16, 32),
        ("asgd-updates", 1, 1),
    ],
)  # fmt: skip
def test_rates_in_a_long_budget(name: str, sgd: float, adam: float) -> None:
    assert chosen(name)[0] == sgd
    assert chosen(name, adaptive=True)[0] == adam
    assert chosen(name, common_batch=True)[0] == pytest.approx(sgd / 16)


@pytest.mark.parametrize(
    ("name", "steps", "settings"),
    [
        ("averaging", LONG, {}),
        ("averaging", SHORT, {"period": 5}),
        ("bmuf", LONG, {}),  # eta = 1 - 1/N is the strategy's own default
        ("bmuf", SHORT, {"block": 2, "momentum": 0.482}),
        ("bmuf", 30, {"block": 1, "momentum": 0.0}),
        ("slowmo", LONG, {"momentum": 0.9375}),
        ("easgd", LONG, {"elasticity": 0.5}),
        ("gossip-pga", SHORT, {}),
        ("synchronous", SHORT, {}),
    ],
)
def test_a_short_budget_has_short_periods_and_memories(name: str, steps: int, settings: dict[str, Any]) -> None:
    assert chosen(name, steps=steps)[1] == settings


def test_gain_of_the_momentum_times_rate_is_the_number_of_learners() -> None:
    for steps in (30, SHORT, 5000, LONG):
        factor, settings = chosen("bmuf", steps=steps)
        assert factor / (1 - settings.get("momentum", 1 - 1 / 16)) == pytest.approx(16, rel=1e-3)
    assert chosen("bmuf", {"momentum": 0.5}, steps=SHORT) == (8.0, {"block": 2})
    assert chosen("bmuf", {"momentum": 0.5, "rate": 2.0}, steps=SHORT)[0] == 4.0
    assert chosen("diloco")[0] == pytest.approx(16 * 0.1 / 0.7, rel=1e-3)


def test_settings_of_the_user_are_kept() -> None:
    assert chosen("averaging", {"period": 40}, steps=SHORT)[1] == {}
    assert chosen("averaging", {"period_frames": 9000}, steps=SHORT)[1] == {}
    assert chosen("bmuf", {"block": 50}, steps=SHORT)[1] == {"momentum": 0.0}
    assert chosen("bmuf", {"optimizer_state": "reset"}, adaptive=True)[1] == {}
    assert chosen("easgd", {"elasticity": 0.1}) == (16.0, {})
    factor, settings = chosen("bmuf", steps=SHORT, own_rate=True)
    assert (factor, settings) == (1.0, {"block": 2})  # the momentum then has to have the gain


def test_nodes_are_the_learners_of_the_outer_strategy() -> None:
    both = RuleConditions(16, SHORT)
    assert choose(Hierarchical(learners_per_node=4), {}, both).factor == 16
    choice = choose(Hierarchical(BMUF(), learners_per_node=4), {"outer": {"name": "bmuf"}}, both)
    assert choice.settings == {"outer": {"name": "bmuf", "block": 2, "momentum": 0.482}}
    assert choice.factor == pytest.approx(4 * 4 * (1 - 0.482), rel=1e-3)
    assert "4 nodes of 4 learners" in choice.line
    assert choose(Hierarchical(learners_per_node=16), {}, both).factor == 16


def test_the_line_says_what_and_why() -> None:
    line = choose(BMUF(), {}, RuleConditions(16, SHORT, adaptive=True)).line
    assert line.startswith("bmuf with 16 learners: rate x 16.58, ")
    assert "block 2 (usual 50: 386 steps per learner are few)" in line
    assert "momentum 0.482" in line
    assert "Chen & Huo" in line
    assert "\n" not in line


@pytest.mark.parametrize("strategy", [Synchronous(), BMUF(), ADPSGD(), Hierarchical()])
def test_a_budget_that_is_too_short_for_any_rule_is_told(strategy: Strategy) -> None:
    few = "199 steps per learner are few, so expect a higher error than one learner's, or use fewer learners"
    assert few in choose(strategy, {}, RuleConditions(16, 199, adaptive=True)).line
    assert "expect a higher error" not in choose(strategy, {}, RuleConditions(16, SHORT, adaptive=True)).line


def test_the_rate_rises_from_that_of_one_learner() -> None:
    choice = choose(Synchronous(), {}, RuleConditions(16, 100))
    assert (choice.warmup_steps, choice.factor * choice.warmup(0), choice.warmup(10)) == (10, 1.0, 1.0)
    assert choice.warmup(5) == pytest.approx((1 + 1 / 16) / 2)
    assert choose(Synchronous(), {}, RuleConditions(16)).warmup(0) == 1.0  # the length of the run is not known


def test_a_strategy_of_the_users_own_keeps_the_rate() -> None:
    class Mine(Averaging):
        pass

    choice = choose(Mine(), {}, RuleConditions(16, SHORT))
    assert (choice.factor, choice.settings) == (1.0, {})
    assert choice.line.startswith("no default rule for Mine: the rate is the experiment's own")


def test_own_loops() -> None:
    optimizer, strategy = adam(0.001), BMUF(form="classical")
    choice = apply_rule(optimizer, strategy, 16, minibatches=SHORT * 16)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001 * choice.factor)
    assert (strategy.block, strategy.momentum, strategy.form) == (2, 0.482, "classical")
    with pytest.raises(SettingsError, match="call it once"):
        apply_rule(optimizer, strategy, 16)
    with pytest.raises(SettingsError, match="learners must be at least 1, not 0"):
        apply_rule(adam(0.1), strategy, 0)
    mine = BMUF(block=7)
    apply_rule(adam(0.001), mine, 16, minibatches=SHORT * 16)
    assert mine.block == 7
    nested = Hierarchical(EASGD(), 4)
    apply_rule(adam(0.001), nested, 16, minibatches=160)
    assert isinstance(nested.outer, EASGD)
    assert (nested.outer.period, nested.outer.elasticity) == (1, 0.5)


def test_an_unscaled_rate_is_seen() -> None:
    assert "looks like that of one learner; averaging with 16" in unscaled_hint(adam(0.001), Averaging(), 16)
    assert unscaled_hint(adam(0.016), Averaging(), 16) == ""  # above what is usual
    assert unscaled_hint(adam(0.0016), Averaging(), 16) == ""  # 16 x 0.0001
    assert unscaled_hint(adam(0.001), BMUF(), 1) == ""
    assert unscaled_hint(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), ADPSGD(), 8)
    assert unscaled_hint(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), BMUF(), 8) == ""  # needs no other rate
    assert unscaled_hint(torch.optim.Rprop(nn.Linear(2, 1).parameters(), lr=0.1), ADPSGD(), 8) == ""
    scaled = adam(0.0001)
    apply_rule(scaled, Averaging(), 16)
    assert unscaled_hint(scaled, Averaging(), 16) == ""

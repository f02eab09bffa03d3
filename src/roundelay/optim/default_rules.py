"""Default rules: what a strategy changes in an experiment that was made for one learner.

N learners share one budget, so each takes 1/N of the steps.  A strategy that averages moves the model by 1/N of the sum
of its learners' changes at each of them.  Without another rate, period or momentum the model ends where one learner is
after 1/N of its training.  A rule chooses these from the number of learners and of steps; what the user has set is
kept.  The studies that found the rules, and their limits, are in docs/how-to/train.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from roundelay.errors import SettingsError
from roundelay.optim.rate_scaling import multiply_rate
from roundelay.strategy import Strategy, period_setting

Table = dict[str, Any]
Given = Collection[str]
"""The settings that the user has set; a mapping has those of a nested strategy as its values."""

BLOCKS_PER_MEMORY = 100
"""Blocks in the budget for each block of a momentum's memory: our study; 20 are the least by the papers."""
WARMUP_SHARE = 0.1
"""Share of the budget over which the rate rises, if a rule warms up."""
FEW_STEPS = 200
"""With fewer steps of each learner the frame error stayed well above that of one learner in our studies."""
USUAL_RATES = ((("Adam", "AdamW", "NAdam", "RAdam", "Adamax"), 0.003), (("SGD",), 0.1))
"""The largest rates that are usual for one learner, by optimizer."""
ADAPTIVE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop")
"""Optimizers of torch.optim that divide by the size of their gradients."""


@dataclass(frozen=True)
class DefaultRule:
    """What a strategy needs, by its papers or by our studies."""

    source: str
    """Where it is from, in a few words."""
    gain: int = 1
    """Whether a step at rate r moves the model by the mean gradient (1), or in effect by N times as much (0)."""
    adaptive_gain: float | None = None
    """The power of N with an adaptive optimizer; by default ``gain``."""
    blocks: bool = True
    """Whether a strategy with a period needs many of them in its budget."""
    wanted: int = 75
    """So many periods at least, before the period is shortened."""
    has_memory: bool = False
    """Whether it has a momentum over blocks, usually with a memory of N of them: it then needs N times as many."""
    warms_up: bool = True
    """Whether the rate rises from that of one learner at the start."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the strategy, different from its defaults."""
    adaptive_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings on top of these with an adaptive optimizer."""


LOCAL = 1.25
"""The power of N for learners that each have an adaptive optimizer of their own.

Adam divides a gradient by its size.  The mean of N gradients is smaller than each, since noise cancels; so synchronous
SGD takes larger steps with Adam, at the same rate, than the mean of N learners that each divide by their own.
"""

RULES: dict[str, DefaultRule] = {
    "synchronous": DefaultRule("linear scaling, Goyal et al., 2017"),
    "averaging": DefaultRule("rate times learners, Su et al., 2015", adaptive_gain=LOCAL),
    # The gain N of the block momentum compensates for the mean, at an unchanged rate, if the budget is long enough.
    "bmuf": DefaultRule(
        "gain of the block momentum times rate is N, Chen & Huo, 2016", gain=0, adaptive_gain=LOCAL - 1,
        has_memory=True, wanted=160, adaptive_settings={"optimizer_state": "keep"},
    ),
    "diloco": DefaultRule(
        "gain of the outer momentum times rate is N, as BMUF", gain=0, adaptive_gain=LOCAL - 1, has_memory=True,
        wanted=160,
    ),
    "slowmo": DefaultRule(
        "gain of the slow momentum times rate is N, as BMUF", gain=0, adaptive_gain=LOCAL - 1, has_memory=True,
        wanted=160,
    ),
    # The centre follows the mean without memory. At an elasticity of 0.9/N learners go far from it in a short budget.
    "easgd": DefaultRule(
        "elasticity of Li et al., 2017", adaptive_gain=LOCAL, wanted=200, settings={"elasticity": 0.5}
    ),
    "easgd-synchronous": DefaultRule("as model averaging", adaptive_gain=LOCAL, wanted=200),
    # The server takes a full step for each gradient, or adds the changes of all learners.
    "asgd": DefaultRule("each gradient is a step, Dean et al., 2012", gain=0, adaptive_gain=LOCAL - 1),
    "asgd-updates": DefaultRule("each change counts in full, Li et al., 2017", gain=0),
    "delay-by-one": DefaultRule("linear scaling, Cui et al., 2021", adaptive_gain=LOCAL),
    "adpsgd": DefaultRule("linear scaling, Cui et al., 2021", adaptive_gain=LOCAL),
    "adpsgd-random": DefaultRule("linear scaling, Cui et al., 2021", adaptive_gain=LOCAL),
    "adpsgd-pairwise": DefaultRule("linear scaling, as adpsgd", adaptive_gain=LOCAL),
    "dpsgd": DefaultRule("linear scaling, as adpsgd", adaptive_gain=LOCAL),
    "sgp": DefaultRule("linear scaling, as adpsgd", adaptive_gain=LOCAL),
    # It mixes at each step, and averages over all besides; with many averages it would be synchronous SGD.
    "gossip-pga": DefaultRule("linear scaling, as adpsgd", adaptive_gain=LOCAL, blocks=False),
    "hierarchical": DefaultRule("mean inside a node, its outer strategy between nodes"),
}  # fmt: skip
"""By the name that an experiment gives; a strategy that is not here keeps the experiment's own numbers."""


@dataclass(frozen=True)
class RuleConditions:
    """What a rule depends on, besides the strategy."""

    learners: int
    steps: int | None = None
    """Of each learner in the budget; ``None``: not known, and taken as many."""
    adaptive: bool = False
    """Whether the optimizer divides by the size of its gradients."""
    common_batch: bool = False
    """Whether one learner's minibatch is divided among all."""
    own_rate: bool = False
    """Whether the user has set how the rate depends on the number of learners."""


@dataclass(frozen=True)
class RuleChoice:
    """The outcome of a rule."""

    factor: float = 1.0
    """Of the rate."""
    settings: Table = field(default_factory=dict)
    """Of the strategy; those of a nested strategy are a table in it."""
    warmup_steps: int = 0
    """Steps of each learner over which the rate rises to the whole."""
    warmup_first: float = 1.0
    """The share of the rate at the first step."""
    line: str = ""
    """What was chosen, and why."""

    def warmup(self, step: int) -> float:
        """Return the factor of the rate after ``step`` steps of a learner."""
        share = min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0
        return self.warmup_first + (1.0 - self.warmup_first) * share


def name_of(strategy: Strategy) -> str:
    """Return what settings call a strategy of the package; the name of its class for any other."""
    kinds: Mapping[str, type[Strategy]] = getattr(Strategy, "registry", {})
    return next((name for name, kind in kinds.items() if kind is type(strategy)), type(strategy).__name__)


def is_adaptive(optimizer: str) -> bool:
    """Tell whether an optimizer of torch.optim, given by its name, divides by the size of its gradients."""
    return optimizer in ADAPTIVE


def choose(strategy: Strategy, given: Given, conditions: RuleConditions) -> RuleChoice:
    """Apply the strategy's default rule; settings in ``given`` stay as they are."""
    name = name_of(strategy)
    if conditions.learners == 1:
        return RuleChoice()
    if name not in RULES:
        return RuleChoice(
            line=f"no default rule for {name}: the rate is the experiment's own; set rate.scale if it averages"
        )
    outer: Strategy | None = getattr(strategy, "outer", None)
    if outer is not None and name == "hierarchical":
        return _choose_for_nodes(strategy, outer, given, conditions)
    chosen = _Chooser(name, strategy, given, conditions)
    chosen.choose_settings()
    chosen.choose_period()
    return chosen.with_rate()


def _choose_for_nodes(strategy: Strategy, outer: Strategy, given: Given, conditions: RuleConditions) -> RuleChoice:
    """Let the nodes be the learners of the outer strategy; a node takes the mean gradient of its learners."""
    nodes = len(strategy.nodes(conditions.learners))  # type: ignore[attr-defined]  # hierarchical has it
    size, inner = conditions.learners / nodes, given["outer"] if isinstance(given, Mapping) and "outer" in given else ()
    if nodes == 1:
        return choose(_plain_synchronous(), (), conditions)
    own = inner if not isinstance(inner, str) else ()
    choice = choose(outer, own, dataclasses.replace(conditions, learners=nodes, common_batch=False))
    if name_of(outer) not in RULES:
        return choice
    factor = choice.factor * (size / conditions.learners if conditions.common_batch else size)
    factor = 1.0 if conditions.own_rate else _round(factor)
    settings = {"outer": {"name": name_of(outer)} | choice.settings} if choice.settings else {}
    line = f"{nodes} nodes of {size:g} learners, rate x {factor:g}; between nodes: {choice.line}"
    warm = choice.warmup_steps if factor > 1 else 0
    return RuleChoice(factor, settings, warm, 1.0 / factor if warm else 1.0, line)


def _plain_synchronous() -> Strategy:
    return Strategy.registry["synchronous"]()


class _Chooser:
    """Collects what a rule chooses, with the words for its line."""

    def __init__(self, name: str, strategy: Strategy, given: Given, conditions: RuleConditions) -> None:
        self.name, self.strategy, self.given, self.conditions = name, strategy, given, conditions
        self.rule = RULES[name]
        self.settings: Table = {}
        self.words: list[str] = []
        self.outer_gain = 1.0

    def choose_settings(self) -> None:
        """Take the settings that the rule has as they are."""
        more = self.rule.adaptive_settings if self.conditions.adaptive else {}
        for key, value in {**self.rule.settings, **more}.items():
            if key not in self.given and getattr(self.strategy, key) != value:
                self.settings[key] = value
                self.words.append(f"{key.replace('_', ' ')} {value}")

    def choose_period(self) -> None:
        """Choose how often learners communicate, so that the budget has enough periods, and what momentum fits."""
        setting, steps = period_setting(type(self.strategy)) if self.rule.blocks else None, self.conditions.steps
        if setting is None:
            return
        period: int = getattr(self.strategy, setting)
        by_frames = getattr(self.strategy, f"{setting}_frames", None) is not None
        if setting not in self.given and not by_frames and steps is not None:
            shorter = max(1, min(period, steps // self.rule.wanted))
            if shorter != period:
                self.settings[setting] = shorter
                self.words.append(f"{setting} {shorter} (usual {period}: {steps} steps per learner are few)")
                period = shorter
        if self.rule.has_memory:
            blocks = steps // period if steps is not None and not by_frames else None
            self.choose_momentum(blocks)

    def choose_momentum(self, blocks: int | None) -> None:
        """Choose the momentum over blocks: a memory of N blocks, or of fewer if the budget has few."""
        learners, usual = self.conditions.learners, getattr(self.strategy, "momentum", None)
        momentum = 1.0 - 1.0 / learners if usual is None or self.name == "slowmo" else usual
        if "momentum" in self.given:
            momentum = usual if usual is not None else momentum
        elif not self.conditions.own_rate:
            memory = 1.0 / (1.0 - momentum)
            if blocks is not None and blocks < BLOCKS_PER_MEMORY * memory:
                memory = max(1.0, blocks / BLOCKS_PER_MEMORY)
                momentum = round(1.0 - 1.0 / memory, 3)
                self.words.append(f"momentum {momentum:g}, a memory for {blocks} blocks")
            else:
                momentum = round(momentum, 6)
            if momentum != usual and (usual is not None or round(1.0 - 1.0 / learners, 6) != momentum):
                self.settings["momentum"] = momentum
        rate: float = getattr(self.strategy, "rate", getattr(self.strategy, "slow_rate", 1.0))
        self.outer_gain = rate / (1.0 - momentum)

    def with_rate(self) -> RuleChoice:
        """Return the choice with its rate and its line."""
        rule, conditions = self.rule, self.conditions
        learners = conditions.learners
        power = float(rule.gain)
        if conditions.adaptive and rule.adaptive_gain is not None:
            power = rule.adaptive_gain
        factor = learners**power
        if rule.has_memory:  # ``gain`` 0 means a momentum with the gain N
            factor *= learners / self.outer_gain
        if conditions.common_batch:
            factor /= learners
        factor = 1.0 if conditions.own_rate else _round(factor)
        steps = conditions.steps
        warm = int(WARMUP_SHARE * steps) if steps is not None and rule.warms_up and factor > 1 else 0
        words = [] if conditions.own_rate else [f"rate x {factor:g}"]
        words += [*self.words, *([f"rising over {warm} steps"] if warm else [])]
        line = f"{self.name} with {learners} learners: {', '.join(words)} ({rule.source})"
        if steps is not None and steps < FEW_STEPS:
            line += (
                f"; {steps} steps per learner are few, so expect a higher error than one learner's, or use fewer "
                "learners, smaller minibatches or more epochs"
            )
        return RuleChoice(factor, self.settings, warm, 1.0 / factor if warm else 1.0, line if words else "")


def _round(factor: float) -> float:
    return float(f"{factor:.4g}")


# -- own loops ---------------------------------------------------------------------------------------------------------


def apply_rule(
    optimizer: torch.optim.Optimizer, strategy: Strategy, learners: int, minibatches: int | None = None
) -> RuleChoice:
    """Multiply the optimizer's rate and set the strategy's settings by its default rule, for a loop of your own.

    Call it before `join`, with a rate for one learner.  ``minibatches`` are those of the whole run, of all learners
    together; without them the run counts as long.  A setting that differs from its default is yours, and is kept.  The
    rate may have to rise first: pass `RuleChoice.warmup` to your scheduler, or use it in the ``schedule`` of `join`.
    """
    if learners < 1:
        raise SettingsError(f"apply_rule: learners must be at least 1, not {learners}")
    if is_marked(optimizer):
        raise SettingsError("apply_rule: the rate of this optimizer is already multiplied; call it once")
    steps = minibatches // learners if minibatches is not None else None
    conditions = RuleConditions(learners, steps, is_adaptive(type(optimizer).__name__))
    choice = choose(strategy, changed_settings(strategy), conditions)
    multiply_rate(optimizer, choice.factor)
    _assign(strategy, choice.settings)
    setattr(optimizer, _MARK, True)
    return choice


def unscaled_hint(optimizer: torch.optim.Optimizer, strategy: Strategy, learners: int) -> str:
    """Return one line if the optimizer's rate looks like that of one learner though the strategy needs another.

    It looks so if it is within what is usual for one learner, `apply_rule` was not called, and dividing it by the
    rule's factor does not give a rounder number: 0.016 for 16 learners looks like 16 times 0.001.
    """
    kind = type(optimizer).__name__
    factor = choose(strategy, changed_settings(strategy), RuleConditions(learners, None, is_adaptive(kind))).factor
    limit = next((limit for kinds, limit in USUAL_RATES if kind in kinds), None)
    if limit is None or factor < 2 or is_marked(optimizer):
        return ""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if not all(0 < rate <= limit and _is_round(rate, learners) for rate in rates):
        return ""
    return (
        f"the rate {rates[0]:g} looks like that of one learner; {name_of(strategy)} with {learners} learners needs "
        f"about {factor:g} times as much: call roundelay.apply_rule(optimizer, strategy, {learners}) before join"
    )


_MARK = "roundelay_rule"  # the attribute of an optimizer whose rate is multiplied


def is_marked(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether `apply_rule` has multiplied this optimizer's rate."""
    return getattr(optimizer, _MARK, False) is True


def changed_settings(strategy: Strategy) -> Table:
    """Return the settings of a strategy that differ from their defaults, those of a nested strategy as a table."""
    changed: Table = {}
    for each in dataclasses.fields(strategy):  # type: ignore[arg-type]  # strategies are dataclasses
        value = getattr(strategy, each.name)
        if isinstance(value, Strategy):
            changed[each.name] = changed_settings(value)
        elif each.default is dataclasses.MISSING or value != each.default:
            changed[each.name] = value
    return changed


def _assign(strategy: Strategy, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _assign(getattr(strategy, key), {inner: each for inner, each in value.items() if inner != "name"})
        else:
            setattr(strategy, key, value)


def _is_round(rate: float, learners: int) -> bool:
    """Tell whether a rate has at most as many digits as it has if it is divided by the number of learners."""
    return len(_digits(rate)) <= len(_digits(rate / learners))


def _digits(number: float) -> str:
    return f"{number:.6e}".partition("e")[0].replace(".", "").rstrip("0")

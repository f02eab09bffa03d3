"""Every setting has a range: whatever is given, it is valid or refused in one line before anything starts."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import call
from odd_settings import HUGE, INSIDE, KINDS, NEEDED, ODD, OTHERS, SECTIONS, SMALL, trained
from roundelay import config
from roundelay.errors import RoundelayError, SettingsError
from roundelay.models import MODELS
from roundelay.optim.schedules import SCHEDULES
from roundelay.strategies import STRATEGIES
from roundelay.strategies.compression import COMPRESSIONS

TINY = Path(__file__).parent.parent / "experiments/tiny.toml"


def test_every_class_of_settings_is_walked() -> None:
    assert KINDS.keys() >= OTHERS
    for registry in (STRATEGIES, SCHEDULES, MODELS, COMPRESSIONS):
        assert {kind.__name__ for kind in registry.values()} <= KINDS.keys()


@pytest.mark.parametrize("name", sorted(KINDS))
def test_any_value_of_any_field_is_valid_or_refused(name: str) -> None:
    kind, needed = KINDS[name], NEEDED.get(name, {})
    for field in dataclasses.fields(kind):
        for value in ODD if field.init else ():
            with contextlib.suppress(RoundelayError):  # anything else is a traceback
                config.build(kind, needed | {field.name: value}, "x.toml")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_no_number_may_be_nan_infinite_or_huge(name: str) -> None:
    kind, needed = KINDS[name], NEEDED.get(name, {})
    limited = config.ranges(kind)  # type: ignore[arg-type]  # a class is hashable
    for field in (each.name for each in dataclasses.fields(kind) if each.init and each.name in limited):
        for value in HUGE:
            hint = str(kind.__annotations__.get(field))
            given = needed | {field: [value] if "list" in hint or "tuple" in hint else value}
            with pytest.raises(SettingsError, match=field):
                config.build(kind, given, "x.toml")
            if issubclass(kind, config.Settings):
                with pytest.raises(SettingsError, match=field):
                    kind(**given)


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("budget.epochs=nan", "budget: epochs must be above 0, not nan; use 1"),
        ("budget.epochs=inf", "budget: epochs must be above 0 and finite, not inf; use 1"),
        ("budget.epochs=1e308", "budget: epochs must be above 0 and at most 1e+06, not 1e+308; use 1e+06"),
        ("optimizer.lr=1e308", "optimizer.lr must be at most 1e+30, not 1e+308; use 1e+30"),
        ("optimizer.lr=nan", "optimizer.lr must be finite, not nan; use 0.001"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, not 'fast'"),
        ('optimizer={name="LBFGS"}', "optimizer: LBFGS "),
        ('optimizer={name="SparseAdam"}', "optimizer: SparseAdam "),
        ('optimizer={name="Adam", capturable=true}', "optimizer: Adam "),
        ("optimizer=3", "optimizer: expected `object`, got `int`"),
        ("threads=1000000000", "threads must be at least 1 and at most 1024, not 1000000000; use 1024"),
        ("learners=1000000000", "learners must be at least 1 and at most 65536, not 1000000000; use 65536"),
        ("task.hidden=[-1]", "task: hidden must be at least 1, not -1; use 1"),
        ("task.dropout=2", "task: dropout must be at least 0 and below 1, not 2.0"),
        ("task.model_seed=99999999999999999999", "not 99999999999999999999; use 9223372036854775807"),
        ("task.model_seed=-1", "task: model_seed must be at least 0"),
        ("strategy=3", "strategy must be a name or a table, not 3"),
        ("strategy={name=3}", "strategy.name must be a string, not 3"),
        ("strategy=[1]", "strategy must be a name or a table, not [1]"),
        ("task=3", "task: expected `object`, got `int`"),
        ("batch.size=0", "batch: size must be at least 1, not 0; use 1"),
        ("budget.warmup=-1", "budget: warmup must be at least 0, not -1; use 0"),
        ("budget.evaluate_every=0", "budget: evaluate_every must be at least 1, not 0; use 1"),
        ("cluster.compute.seconds=-1", "cluster.compute: seconds must be at least 0, not -1.0; use 0"),
        ("cluster.compute.seconds=nan", "cluster.compute: seconds must be at least 0, not nan; use 0.1"),
        ("cluster.compute.jitter=-1", "cluster.compute: jitter must be at least 0"),
        ("cluster.compute.jitter=nan", "cluster.compute: jitter must be at least 0"),
        ("cluster.compute.trace=[0.1, nan]", "cluster.compute: trace must be at least 0, not nan"),
        ("cluster.intra_node.bandwidth=nan", "cluster.intra_node: bandwidth must be above 0, not nan"),
        ("cluster.intra_node.bandwidth=-1", "cluster.intra_node: bandwidth must be above 0, not -1.0"),
        ("cluster.stragglers=[{learner=0, factor=0}]", "cluster.stragglers[0]: factor must be above 0, not 0"),
        ("cluster.learners_per_node=0", "cluster: learners_per_node must be at least 1, not 0; use 1"),
        ("budget.minibatches=1", "learners = 2, but the budget has 1 minibatch"),
    ],
)
@pytest.mark.parametrize("on", ["simulator", "processes"])
def test_a_value_outside_its_range_is_refused_in_one_line(on: str, assignment: str, said: str, tmp_path: Path) -> None:
    refused(on, assignment, said, tmp_path / "run")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("cluster.stragglers=[{learner=99, factor=2}]", "cluster.stragglers: learner 99 of 2; use 0 to 1"),
        ("cluster.faults=[{learner=99, at_seconds=1}]", "cluster.faults: learner 99 of 2; use 0 to 1"),
        ("cluster.faults=[{learner=-1, at_seconds=1}]", "cluster.faults: learner -1 of 2; use 0 to 1"),
        ("cluster.stops=[{learner=2, at_seconds=1, seconds=1}]", "cluster.stops: learner 2 of 2; use 0 to 1"),
        ("cluster.partitions=[{learners=[0, 5], at_seconds=1, seconds=1}]", "cluster.partitions: learner 5 of 2"),
        ("cluster.learners_per_node=[1, 2]", "cluster.learners_per_node names 2 nodes"),
    ],
)
def test_a_simulated_cluster_fits_its_learners(assignment: str, said: str, tmp_path: Path) -> None:
    refused("simulator", assignment, said, tmp_path / "run")


def refused(on: str, assignment: str, said: str, out: Path) -> None:
    """See that nothing starts, and that one line says why."""
    result = call("train", str(TINY), "--out", str(out), "--on", on, "--learners", "2", "--set", assignment)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert said in result.stderr
    assert not out.exists()


def test_the_small_experiment_trains() -> None:
    assert trained(SMALL)


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_an_experiment_with_any_value_trains_or_is_refused(section: str) -> None:
    kind, table = SECTIONS[section]
    name = section.partition(" ")[0]
    for field in dataclasses.fields(kind):
        for value in ODD if field.init else ():
            trained(SMALL | {name: table | {field.name: value}})


@pytest.mark.parametrize("inside", sorted(INSIDE))
def test_a_cluster_with_any_value_is_simulated_or_refused(inside: str) -> None:
    kind = KINDS[INSIDE[inside]]
    for field in dataclasses.fields(kind):
        for value in ODD:
            given: Any = NEEDED.get(kind.__name__, {}) | {field.name: value}
            *outer, name = inside.split(".")
            table = {name: [given] if name.endswith("s") and name != "pauses" else given}
            for each in outer:
                table = {each: table}
            trained(SMALL | {"cluster": table})


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


@pytest.mark.filterwarnings("ignore:Casting complex values")  # a root of a negative number, in torch's ASGD
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_with_any_argument_steps_or_is_refused(name: str) -> None:
    known = inspect.signature(getattr(torch.optim, name).__init__).parameters
    for argument in [*(known.keys() - {"self", "params"}), "fast"]:
        for value in ODD:
            trained(SMALL | {"optimizer": {"name": name, argument: value}})

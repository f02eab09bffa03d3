"""TOML to typed settings and back."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from roundelay import config
from roundelay.errors import RoundelayError, SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.strategies import STRATEGIES
from roundelay.strategies.averaging import Averaging


@dataclass
class Inner:
    size: int = 1
    names: list[str] = field(default_factory=list)


@dataclass
class Outer:
    rate: float
    kind: Literal["ring", "tree"] = "ring"
    inner: Inner = field(default_factory=Inner)
    several: list[Inner] = field(default_factory=list)
    maybe: int | None = None


def test_nested_tables_become_dataclasses() -> None:
    made = config.build(Outer, {"rate": 1, "inner": {"size": 3}, "several": [{"size": 4}], "maybe": 2}, "x.toml")
    assert made == Outer(1.0, inner=Inner(3), several=[Inner(4)], maybe=2)
    assert config.build(Outer, config.plain(made), "x.toml") == made


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1.0}, "x.toml: unknown key 'rat'; did you mean 'rate'?"),
        ({}, "x.toml: rate is missing"),
        ({"rate": "fast"}, "x.toml: rate: expected `float`, got `str`"),
        ({"rate": 1.0, "inner": {"sise": 1}}, "x.toml: inner: unknown key 'sise'; did you mean 'size'?"),
        ({"rate": 1.0, "inner": {"size": 1.5}}, "x.toml: inner.size: expected `int`, got `float`"),
        ({"rate": 1.0, "kind": "rong"}, "x.toml: kind: unknown 'rong'; did you mean 'ring'?"),
        ({"rate": 1.0, "several": [{}, {"size": "x"}]}, "x.toml: several[1].size: expected `int`, got `str`"),
    ],
)
def test_what_is_wrong_is_said_where(table: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        config.build(Outer, table, "x.toml")
    assert str(caught.value) == message


def test_named_kinds() -> None:
    made = config.build_named(STRATEGIES, {"name": "averaging", "period": 5}, "strategy")
    assert made == Averaging(period=5)
    assert config.build_named(STRATEGIES, "averaging", "strategy") == Averaging()
    with pytest.raises(SettingsError, match="strategy.name: unknown 'bumf'; did you mean 'bmuf'"):
        config.build_named(STRATEGIES, "bumf", "strategy")
    with pytest.raises(SettingsError, match="strategy.name is missing; there are adpsgd"):
        config.build_named(STRATEGIES, {"period": 5}, "strategy")


def test_assignments() -> None:
    table: dict[str, object] = {"a": {"b": 1}}
    for assignment in ("a.b=2.5", "a.c=word", 'd.e="quoted"', "f=[1, 2]", "g=true"):
        config.apply(table, assignment)
    assert table == {"a": {"b": 2.5, "c": "word"}, "d": {"e": "quoted"}, "f": [1, 2], "g": True}
    for wrong in ("nothing", "=1", "g.h=1"):
        with pytest.raises(SettingsError, match="--set"):
            config.apply(table, wrong)


@pytest.mark.parametrize("data", [b"a = ", b"\xff\xfe", b"[x\n"])
def test_files_that_are_not_toml(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=r"x\.toml: not (TOML|UTF-8)"):
        config.read(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["task", "strategy", "optimizer", "budget", "batch", "learners", "cluster", "seed", "nmae"])


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_settings_build_or_are_refused_with_a_line(table: dict[str, object]) -> None:
    with contextlib.suppress(RoundelayError):  # anything else would be a crash
        config.build(Experiment, table, "x.toml")


@dataclass(frozen=True)
class Bounded(config.Settings):
    exclusive: ClassVar[tuple[str, ...]] = ("size", "total")

    size: config.Count | None = None
    total: int | None = None
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    widths: list[config.Count] = field(default_factory=list)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 0}, "size must be at least 1, not 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"momentum": math.nan}, "momentum must be at least 0 and below 1, not nan"),
        ({"widths": [4, -2]}, "widths must be at least 1, not -2"),
        ({"size": 2, "total": 3}, "size and total are both given; use one of them"),
    ],
)
def test_bounds_hold_for_every_instance(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        Bounded(**settings)
    with pytest.raises(SettingsError, match=re.escape(f"x.toml: {said}")):
        config.build(Bounded, settings, "x.toml")


def test_settings_inside_their_bounds_are_taken() -> None:
    assert Bounded(size=1, momentum=0.0, widths=[1, 2]).widths == [1, 2]

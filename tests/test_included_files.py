"""Experiments, studies and clusters by name, and files that extend others."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.included_files import LOOP, Kind, find_file, included_names, merge, read_extended


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_included_file_is_found_and_can_be_read(kind: Kind) -> None:
    names = included_names(kind)
    assert len(names) == len(set(names)) > 2
    for name in names:
        assert read_extended(find_file(kind, name), kind)


def test_names_of_each_kind() -> None:
    assert {"tiny", "an4-dnn"} <= {*included_names("experiment")}
    assert {"tiny", "papers"} <= {*included_names("study")}
    assert {"two-racks", "v100-ethernet"} <= {*included_names("cluster")}
    assert "roundelay.join(" in LOOP.read_text(encoding="utf-8")


def test_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file("experiment", "tiny").name == "tiny.toml"
    (tmp_path / "tiny").write_text("seed = 3\n")
    assert find_file("experiment", "tiny") == Path("tiny")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("an4-dn", "no file and no included experiment 'an4-dn'; did you mean 'an4-dnn'?"),
        ("nowhere.toml", "nowhere.toml: no such file; give a TOML file, or one of an4-all"),
        ("a/b", "a/b: no such file"),
        (".", "no such file"),
    ],
)
def test_what_is_not_there(given: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        find_file("experiment", given)
    assert message in str(raised.value)


def test_a_file_extends_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "tiny"\nlearners = 2\n[batch]\nsize = 8\n')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\nseed = 9\n[optimizer]\nlr = 0.5\n')
    table = read_extended(tmp_path / "mine.toml")
    below = read_extended(find_file("experiment", "tiny"))
    assert (table["seed"], table["learners"], table["batch"]["size"]) == (9, 2, 8)
    assert table["optimizer"] == below["optimizer"] | {"lr": 0.5}
    assert table["task"] == below["task"]
    assert "extends" not in table
    assert Experiment.of(table).learners == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "mine.toml"', "extends mine.toml, which extends mine.toml again"),
        ("extends = 3", "extends must be the name of a file, not 3"),
        ('extends = "an4-dn"', "did you mean 'an4-dnn'"),
    ],
)
def test_what_cannot_be_extended(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_extended(tmp_path / "mine.toml")


def test_a_table_of_another_name_is_replaced() -> None:
    table = {"strategy": {"name": "bmuf", "block": 5}, "lr": 1}
    assert merge(table, {"strategy": {"name": "asgd"}}) == {"strategy": {"name": "asgd"}, "lr": 1}

"""``roundelay strategies``: a line each with the paper, and all about one."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from roundelay.cli import roundelay
from roundelay.cli.strategies import readable
from roundelay.errors import SettingsError
from roundelay.strategies import STRATEGIES


def run(*args: str) -> Result:
    return CliRunner().invoke(roundelay, ["strategies", *args])


def test_a_line_each_with_the_paper() -> None:
    lines = run("--wide").stdout.splitlines()
    for name in STRATEGIES:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert re.search(r"(et al\.|&) ?\w*, (19|20)\d\d  ", line), line


def test_json_has_all_of_it() -> None:
    everyone = json.loads(run("--json").stdout)["strategies"]
    assert [each["name"] for each in everyone] == sorted(STRATEGIES)
    assert all(each["paper"] and each["summary"] for each in everyone)
    (bmuf,) = [each for each in everyone if each["name"] == "bmuf"]
    assert bmuf["paper"] == "Chen & Huo, 2016"
    (asgd,) = [each for each in everyone if each["name"] == "asgd"]
    assert asgd["paper"] == "Dean et al., 2012"  # whose paragraph it is, not the first that is named


def test_one_of_them_with_equations_defaults_and_meanings() -> None:
    text = run("diloco").stdout
    assert "D(t) = θ(t-1) - θ̄(t)" in text
    table = {line.split()[0]: line for line in text.splitlines() if line and "─" not in line}
    assert "500" in table["block"]
    assert "0.7" in table["rate"]
    assert "nu" in table["rate"]
    said = json.loads(run("diloco", "--json").stdout)
    (momentum,) = [each for each in said["hyperparameters"] if each["name"] == "momentum"]
    assert momentum == {"name": "momentum", "type": "float | None", "default": 0.9, "meaning": "mu"}


def test_options_of_an_option_are_shown_too() -> None:
    names = [each["name"] for each in json.loads(run("synchronous", "--json").stdout)["hyperparameters"]]
    assert {"bucket_bytes", "compression", "compression top-k: fraction", "compression powersgd: rank"} <= set(names)


def test_every_strategy_can_be_shown_without_tex_left_over() -> None:
    for name in STRATEGIES:
        text = run(name).stdout
        assert "\\" not in text, name
        assert "$" not in text, name


def test_an_unknown_name_suggests_the_nearest() -> None:
    result = run("bumf")
    assert isinstance(result.exception, SettingsError)
    assert str(result.exception) == "unknown strategy 'bumf'; did you mean 'bmuf'?"


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"$w \gets w - \gamma g$", "w ← w - γ g"),
        (r"$\frac{\sum_k n_k w_k}{\sum_k n_k}$", "(Σ_k n_k w_k)/(Σ_k n_k)"),
        (r"$\frac13 (w_{l-1} + w_l)$", "1/3 (w_(l-1) + w_l)"),
        (r"$\bar W(t)$ and ``x``", "W̄(t) and 'x'"),
    ],
)
def test_tex_is_made_readable(tex: str, text: str) -> None:
    assert readable(tex) == text

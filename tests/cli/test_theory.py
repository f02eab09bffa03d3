"""``roundelay theory``: figures, plot, picture, JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from roundelay.cli import roundelay
from roundelay.errors import RoundelayError


def run(*args: str) -> Result:
    return CliRunner().invoke(roundelay, ["theory", *args])


def test_the_ring_of_sixteen() -> None:
    result = run("--topology", "ring", "--learners", "16")
    assert result.exit_code == 0, result.output
    for figure in ("0.9493", "0.0507", "88.43", "0.9626", "o ring", "100 %", "general shape", "Lipschitz"):
        assert figure in result.stdout


def test_json_is_alone_on_standard_output() -> None:
    result = run("--topology", "ring", "--topology", "complete", "--learners", "8", "--staleness", "3", "--json")
    said = json.loads(result.stdout)
    ring, complete = said["topologies"]
    assert ring["contraction"] == pytest.approx(0.8047, abs=1e-4)
    assert ring["gap"] + ring["contraction"] == pytest.approx(1)
    assert complete["exact_after"] == 1
    assert ring["convergence"]["network"] > complete["convergence"]["network"]
    assert ring["convergence"]["staleness"] == complete["convergence"]["staleness"] > 0
    assert any("general shape" in line for line in said["assumptions"])


def test_all_topologies_that_fit_are_the_default() -> None:
    names = [each["topology"] for each in json.loads(run("--learners", "6", "--json").stdout)["topologies"]]
    assert "butterfly" not in names  # six is no power of two
    assert {"bipartite", "complete", "exponential", "hopping-ring", "random-ring", "ring"} <= set(names)


def test_the_picture_is_well_formed(tmp_path: Path) -> None:
    picture = tmp_path / "mixing.svg"
    assert run("--topology", "ring", "--topology", "random-ring", "--svg", str(picture)).exit_code == 0
    root = ElementTree.fromstring(picture.read_text())
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 2
    assert {"ring", "random-ring"} <= {text.text for text in root.findall(f"{space}text")}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--topology", "rign"], "unknown topology 'rign'; did you mean 'ring'?"),
        (["--topology", "butterfly", "--learners", "6"], "'butterfly' needs a power of two learners, not 6"),
        (["--learners", "1"], "--learners must be from 2 to 256, not 1"),
        (["--rate", "3"], "rate must be above 0 and at most 1/smoothness = 1, not 3"),
        (["--noise", "0"], "noise must be above 0, not 0.0"),
    ],
)
def test_what_it_refuses(args: list[str], says: str) -> None:
    result = run(*args)
    assert isinstance(result.exception, RoundelayError)
    assert says in str(result.exception)

"""``roundelay recommend``."""

from __future__ import annotations

import json

from click.testing import CliRunner

from roundelay.cli import roundelay


def test_one_strategy_its_command_and_why() -> None:
    result = CliRunner().invoke(roundelay, ["recommend", "laptop", "--hours", "1", "--learners", "2"])
    assert result.exit_code == 0, result.output
    first, second, *rest = result.stdout.splitlines()
    name = first.removeprefix("Use ").rstrip(":")
    assert second == f"  roundelay train EXPERIMENT --out RUN --learners 2 --strategy {name}"
    assert rest[0].startswith(f"It sets: {name} with 2 learners: rate x ")
    assert rest[1].startswith("Speed: ")
    assert "Limits: " in rest[-1]


def test_as_json() -> None:
    result = CliRunner().invoke(roundelay, ["recommend", "laptop", "--hours", "1", "--learners", "2", "--json"])
    found = json.loads(result.stdout)
    assert found["strategy"] in {row["strategy"] for row in found["strategies"]}
    assert found["learners"] == 2
    assert found["reasons"]

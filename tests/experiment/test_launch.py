"""What is slowed on purpose is written down in one way, whichever runtime slows it and for whatever reason."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from roundelay.cli.train import command
from roundelay.experiment.launch import slowed
from roundelay.report.report_writer import write_report
from roundelay.runtimes.cluster import Cluster, Straggler
from roundelay.runtimes.fault_plan import FaultPlan, parse


def test_at_worst() -> None:
    cluster = Cluster(stragglers=[Straggler(2, 2.0), Straggler(2, 3.0, 5.0, 6.0), Straggler(0, 4.0, 1.0)])
    assert slowed(cluster) == {"0": 4.0, "2": 6.0}
    events = parse("slow 0 x5 at 2s for 3s; slow 1 x2; slow server 0 x9; stop 2 for 1s", 3, 1)
    assert slowed(Cluster(), FaultPlan(events, servers=1)) == {"0": 5.0, "1": 2.0}
    assert slowed(Cluster()) == {}


def test_runs_made_by_hand_show_in_a_report_what_a_straggler_does(root: Path, tmp_path: Path) -> None:
    short = ("--set", "budget.minibatches=60", "--set", "task.hidden=[8]", "--learners", "4", "--on", "simulator")
    for name, words in (("even", ()), ("slow", ("--slow", "3=2")), ("faults", ("--faults", "slow 3 x5"))):
        made = [str(root / "experiments" / "tiny.toml"), "--out", str(tmp_path / name), *short, *words]
        assert CliRunner().invoke(command, made).exit_code == 0
    assert json.loads((tmp_path / "slow" / "run.json").read_text())["slow"] == {"3": 2.0}
    page = write_report(tmp_path, tmp_path / "out")
    figures = json.loads(page.with_suffix(".json").read_text())["figures"]
    figure = next(each for each in figures if each["name"] == "straggler-throughput-virtual")
    assert [point[0] for point in figure["series"][0]["points"]] == [1.0, 2.0, 5.0]

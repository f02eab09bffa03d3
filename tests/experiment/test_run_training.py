"""What is slowed on purpose, and what a default rule has chosen, is written down in one way on every runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from roundelay.cli.train import command
from roundelay.experiment.continuation import resume
from roundelay.experiment.run_training import Changes, configure, slowed
from roundelay.experiment.settings import Experiment
from roundelay.report.report_writer import write_report
from roundelay.runtimes.cluster import Cluster, Straggler
from roundelay.runtimes.fault_plan import FaultPlan, parse
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.bmuf import BMUF


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


TINY: dict[str, Any] = {
    "task": {"name": "tiny", "frames_per_epoch": 1280, "hidden": [8]},
    "optimizer": {"name": "SGD", "lr": 0.05},
    "batch": {"size": 16},
    "budget": {"minibatches": 320},
}


def configured(**changes: Any) -> Experiment:
    return configure(TINY, Changes(**changes))


def test_a_table_gets_the_rule_of_its_strategy() -> None:
    made = configured(strategy="bmuf", learners=4)
    assert made.rate is not None
    assert isinstance(made.strategy, BMUF)
    assert (made.strategy.block, made.strategy.momentum) == (1, 0.0)  # 80 steps are few
    assert (made.rate.multiplier, made.rate.warmup_frames, made.rate.warmup_first) == (4.0, 8 * 64, 0.25)
    assert made.rate.chosen.startswith("bmuf with 4 learners: rate x 4, block 1 (usual 50: 80 steps")
    job = made.job()
    assert job.optimizer(job.task.make_module()).param_groups[0]["lr"] == pytest.approx(0.2)
    assert job.schedule is not None
    assert [job.schedule()(frames) for frames in (0, 256, 512)] == [0.25, 0.625, 1.0]


def test_ranks_that_others_start_count_for_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"RANK": "1", "WORLD_SIZE": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    made = configured(strategy="easgd")  # one of the five serves
    assert made.learners == 4
    assert made.rate is not None
    assert made.rate.chosen.startswith("easgd with 4 learners: rate x 4")
    assert configured(strategy="averaging", learners=2).learners == 5
    assert configure(TINY, Changes(strategy="easgd"), on="simulator").rate is None


def test_what_the_user_sets_is_kept() -> None:
    one = configured(strategy="bmuf")
    assert (one.rate, one.strategy) == (None, BMUF())
    none = configured(strategy="bmuf", learners=4, settings={"rate.rule": "none"})
    assert (none.strategy, none.make_schedule()) == (BMUF(), None)
    own = configured(strategy="averaging", learners=4, settings={"strategy.period": 8, "rate.scale": "learners"})
    assert own.strategy == Averaging(period=8)
    assert own.rate is None or own.rate.factor(4, 16) == 4.0
    again = configure(configured(strategy="averaging", learners=4).plain(), Changes())
    assert again == configured(strategy="averaging", learners=4)  # resolved settings are not resolved twice


def test_the_rule_is_said_recorded_and_resumed(tmp_path: Path) -> None:
    run, said = (
        tmp_path / "run",
        "averaging with 4 learners: rate x 4, period 1 (usual 10: 80 steps per learner are few)",
    )
    first = CliRunner().invoke(command, [*_tiny_words(tmp_path), "--out", str(run), "--learners", "4"])
    assert first.exit_code == 0, first.output
    assert first.stderr.count(said) == 1
    assert json.loads((run / "run.json").read_text())["rule"].startswith(said)
    assert said in (run / "settings.toml").read_text()
    assert Experiment.read(run / "settings.toml").strategy == Averaging(period=1)
    words = [*_tiny_words(tmp_path), "--out", str(tmp_path / "json"), "--learners", "4", "--json"]
    assert json.loads(CliRunner().invoke(command, words).stdout)["rule"].startswith(said)
    before = load_file(run / "model.safetensors")
    for name in ("model.safetensors", "model.json"):
        (run / name).unlink()
    resume(run)
    after = load_file(run / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_learner_is_as_without_rules(tmp_path: Path) -> None:
    models = []
    for name, rule in (("auto", "auto"), ("none", "none")):
        words = [*_tiny_words(tmp_path), "--out", str(tmp_path / name), "--set", f"rate.rule={rule}"]
        made = CliRunner().invoke(command, words)
        assert made.exit_code == 0
        assert "rate x" not in made.stderr
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def _tiny_words(folder: Path) -> list[str]:
    path = folder / "tiny.toml"
    path.write_text(tomli_w.dumps(TINY | {"strategy": {"name": "averaging"}}), encoding="utf-8")
    return [str(path), "--on", "simulator"]

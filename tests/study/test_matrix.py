"""From a study's file to its cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.study.definition import Study
from roundelay.study.matrix import expand
from study_files import write_study


def test_every_combination_is_a_cell_and_has_its_trials(tmp_path: Path) -> None:
    matrix = expand(Study.read(write_study(tmp_path / "s.toml")))
    assert len({cell.name for cell in matrix.cells}) == len(matrix.cells) == 2 * 2 * 2
    assert len({trial.name for trial in matrix.trials}) == len(matrix.trials) == 2 * 2 * 2
    assert {cell.rate for cell in matrix.cells} == {None}
    assert {cell.frames for cell in matrix.cells} == {640}
    assert {trial.frames for trial in matrix.trials} == {320}
    assert {trial.seed for trial in matrix.trials} == {0}


def test_two_strategies_of_one_name_need_labels(tmp_path: Path) -> None:
    twice = '["averaging", { name = "averaging", period = 2 }]'
    with pytest.raises(SettingsError, match="averaging-1-seed-1: give one of the strategies another label"):
        expand(Study.read(write_study(tmp_path / "s.toml", strategies=twice)))
    labelled = twice.replace("period = 2", 'period = 2, label = "often"')
    matrix = expand(Study.read(write_study(tmp_path / "s.toml", strategies=labelled)))
    assert {cell.strategy for cell in matrix.cells} == {"averaging", "often", "synchronous"}


def test_a_divided_minibatch_keeps_the_rate(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", strategies='["synchronous", "asgd"]', learners="[4]")
    path.write_text(path.read_text().replace("{ size = 16 }", "{ total = 32 }"))
    matrix = expand(Study.read(path))
    assert {t.rate for t in matrix.trials if t.strategy == "synchronous"} == {0.05, 0.2}
    assert {t.rate for t in matrix.trials if t.strategy == "asgd"} == {0.0125, 0.05}
    assert {cell.minibatches for cell in matrix.cells if cell.learners == 4} == {80}
    looks = {cell.learners: cell.settings["budget"]["evaluate_every"] for cell in matrix.cells}
    assert looks == {1: 20, 4: 80}
    assert {cell.frames for cell in matrix.cells} == {640}


def test_the_baseline_is_added_and_healthy(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", strategies='["adpsgd"]', learners="[4]", seeds="[1]")
    path.write_text(path.read_text() + "cluster = { stragglers = [{ learner = 0, factor = 9.0 }] }\n")
    cells = {cell.name: cell for cell in expand(Study.read(path)).cells}
    assert set(cells) == {"adpsgd-4-seed-1", "synchronous-1-seed-1"}
    assert not cells["synchronous-1-seed-1"].settings["cluster"]["stragglers"]
    assert cells["adpsgd-4-seed-1"].settings["cluster"]["stragglers"][0]["learner"] == 0


def test_budgets_are_whole_rounds(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", strategies='["synchronous"]', learners="[3]", seeds="[1]", epochs=5)
    matrix = expand(Study.read(path))  # 200 minibatches
    assert {cell.learners: cell.minibatches for cell in matrix.cells} == {1: 200, 3: 201}
    assert {trial.learners: trial.minibatches for trial in matrix.trials} == {1: 100, 3: 102}
    assert all(cell.settings["budget"]["minibatches"] == cell.minibatches for cell in matrix.cells + matrix.trials)
    with pytest.raises(SettingsError, match="the same frames, not 576 to 640"):
        expand(Study.read(write_study(path, strategies='["synchronous"]', learners="[9]", seeds="[1]")))


def test_a_hierarchy_takes_its_nodes_from_the_cluster(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", strategies='["hierarchical"]', learners="[16]", seeds="[1]", epochs=4)
    flat = next(cell for cell in expand(Study.read(path)).cells if cell.learners == 16)
    assert flat.settings["strategy"]["learners_per_node"] == 4
    path.write_text(path.read_text() + "cluster = { nodes = 2, learners_per_node = 8 }\n")
    racks = next(cell for cell in expand(Study.read(path)).cells if cell.learners == 16)
    assert racks.settings["strategy"]["learners_per_node"] == [8, 8]


def test_parts_models_and_clusters(tmp_path: Path) -> None:
    more = """
[[parts]]
on = "processes"
learners = [2]
strategies = ["averaging"]
seeds = [1]
[[parts]]
clusters = ["slow"]
models = ["wide"]
learners = [2]
strategies = ["averaging"]
seeds = [1]
[models.wide.task]
hidden = [16]
[clusters.slow]
inter_node = { bandwidth = 1e6 }
"""
    path = write_study(tmp_path / "s.toml", more=more)
    cells = {cell.name: cell for cell in expand(Study.read(path)).cells}
    assert set(cells) == {
        "averaging-2-wide-processes-seed-1", "synchronous-1-wide-processes-seed-1",
        "averaging-2-wide-slow-seed-1", "synchronous-1-wide-slow-seed-1",
    }  # fmt: skip
    wide = cells["averaging-2-wide-slow-seed-1"].settings
    assert wide["task"]["hidden"] == [16]
    assert wide["cluster"]["inter_node"]["bandwidth"] == 1e6
    assert wide["task"]["model_seed"] == wide["seed"] == 1


def test_a_study_that_asks_for_default_rules_gets_them(tmp_path: Path) -> None:
    plain = write_study(tmp_path / "plain.toml", strategies='["bmuf"]', learners="[4]", seeds="[1]", rates="[]")
    text = plain.read_text(encoding="utf-8")
    by_rule = tmp_path / "rule.toml"
    by_rule.write_text(text + '\n[experiment.rate]\nrule = "auto"\n', encoding="utf-8")
    first, second = (
        next(cell for cell in expand(Study.read(path)).cells if cell.learners == 4) for path in (plain, by_rule)
    )
    assert "rate" not in first.settings  # a study says its own rates
    assert second.settings["rate"]["chosen"].startswith("bmuf with 4 learners: rate x ")
    assert second.rate == first.rate  # the factor is in the settings, not in the rate
    assert second.fitted.period is None

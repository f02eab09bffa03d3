"""``roundelay plan``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundelay.cli import roundelay
from roundelay.errors import RoundelayError

CLUSTER = """
name = "four nodes"
source = "made up"
nodes = 4
learners_per_node = 2
model_bytes = 1e8
stragglers = [{ learner = 1, factor = 4.0 }]

[inter_node]
latency_seconds = 1e-4
bandwidth = 1e9

[compute]
seconds = 0.1
jitter = 0.1
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    return str(path)


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(roundelay, ["plan", *arguments])
    if isinstance(result.exception, RoundelayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_nine_are_ranked(cluster: str) -> None:
    said = json.loads(plan(cluster, "--no-sensitivity", "--json"))
    (found,) = said["plans"]
    assert found["learners"] == 8
    assert len(found["strategies"]) == 9
    rates = [row["frames_per_second"] for row in found["strategies"]]
    assert rates == sorted(rates, reverse=True)
    by_name = {row["strategy"]: row for row in found["strategies"]}
    assert by_name["bmuf"]["bottleneck"] == "the slowest learner"
    assert by_name["asgd"]["bottleneck"] == "the server's link"
    assert by_name["synchronous"]["idle"] == pytest.approx(1 - by_name["synchronous"]["shares"]["compute"])
    assert {each["assumption"] for each in said["assumptions"]} >= {"slowest learner", "bandwidth between nodes"}
    assert any(found["strategies"][0]["strategy"] in line for line in said["answer"])


def test_assumptions_are_changed_one_by_one(cluster: str) -> None:
    said = json.loads(plan(cluster, "--strategy", "synchronous", "--strategy", "averaging", "--json"))
    effects = {each["assumption"]: each["changes"] for each in said["sensitivity"]}
    half, double = effects["bandwidth between nodes"]
    assert (half["factor"], double["factor"]) == (0.5, 2.0)
    assert half["throughput"]["synchronous"] < 1 < double["throughput"]["synchronous"]
    gradient = effects["time of a gradient"]
    assert gradient[0]["throughput"]["averaging"] > 1.5
    assert {name for change in gradient for name in change["order"]} == {"synchronous", "averaging"}


def test_the_table_can_be_read(cluster: str) -> None:
    text = plan(cluster, "--strategy", "bmuf", "--strategy", "asgd", "--learners", "4", "--hours", "10")
    for word in (
        "four nodes, 4 learners",
        "from: made up",
        " epoch ",
        "bottleneck",
        "the server's link",
        "/ 2",
        "x 2",
    ):
        assert word in text
    assert "ranked by frames per second" in text


def test_hyperparameters_can_be_set(cluster: str) -> None:
    def rate(*more: str) -> float:
        said = json.loads(plan(cluster, "--strategy", "averaging", "--no-sensitivity", "--json", *more))
        return float(said["plans"][0]["strategies"][0]["frames_per_second"])

    assert rate("--set", "averaging.period=1") < rate("--set", "averaging.period=20")


def test_a_strategy_that_does_not_fit_is_named(cluster: str) -> None:
    text = plan(
        cluster, "--strategy", "averaging", "--strategy", "bmuf", "--set", "averaging.topology=butterfly",
        "--learners", "6", "--no-sensitivity",
    )  # fmt: skip
    assert "averaging: not planned" in text


def test_profiles_are_listed_and_found() -> None:
    said = json.loads(plan("--list", "--json"))
    assert set(said["profiles"]) >= {"k20-mpi", "v100-ethernet", "laptop", "home-offices"}
    assert all(profile["source"] for profile in said["profiles"].values())
    assert "two home offices" in plan("--list")
    (found,) = json.loads(plan("home-offices", "--strategy", "bmuf", "--no-sensitivity", "--json"))["plans"]
    assert found["learners"] == 4


def recorded(folder: Path, strategy: str, losses: list[float], learners: int = 8) -> None:
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(f'learners = {learners}\n[strategy]\nname = "{strategy}"\n', encoding="utf-8")
    lines = []
    for k, loss in enumerate(losses):
        lines += [{"event": "step", "member": "learner 0", "time": k, "minibatch": k, "frames": 100, "loss": loss}]
        lines += [{"event": "evaluate", "member": "learner 0", "time": k, "minibatch": k + 1, "loss": loss}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"event": "st'
    (folder / "record.jsonl").write_text(text, encoding="utf-8")


def test_a_record_gives_time_to_target(cluster: str, tmp_path: Path) -> None:
    recorded(tmp_path / "study/runs/a", "bmuf", [3.0, 2.5, 2.0, 1.0])
    recorded(tmp_path / "study/runs/b", "synchronous", [3.0, 1.5])
    recorded(tmp_path / "study/runs/c", "asgd", [3.0, 2.9])
    (tmp_path / "study/study.json").write_text('{"target": {"score": "loss", "value": 2.0}}', encoding="utf-8")
    names = [argument for name in ("bmuf", "synchronous", "asgd", "easgd") for argument in ("--strategy", name)]
    said = json.loads(plan(cluster, *names, "--record", str(tmp_path / "study"), "--no-sensitivity", "--json"))
    rows = {row["strategy"]: row for row in said["plans"][0]["strategies"]}
    assert said["by"] == "time to target"
    assert rows["bmuf"]["target_seconds"] == pytest.approx(300 / rows["bmuf"]["frames_per_second"])
    assert rows["synchronous"]["target_seconds"] == pytest.approx(200 / rows["synchronous"]["frames_per_second"])
    assert rows["asgd"]["target_seconds"] is rows["easgd"]["target_seconds"] is None
    assert said["record"]["asgd"]["missed"] == 1
    text = plan(cluster, *names, "--record", str(tmp_path / "study"), "--target", "loss=2.5", "--no-sensitivity")
    assert "loss at most 2.5" in text
    assert "asgd: not reached" in text
    (tmp_path / "study/runs/b/cell.json").write_text('{"status": "diverged"}', encoding="utf-8")
    text = plan(cluster, *names, "--record", str(tmp_path / "study"), "--no-sensitivity")
    assert "synchronous: not reached (median of 1 run, 1 missed)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no file and no included cluster 'nowhere'"),
        (["k20"], "did you mean 'k20-mpi'"),
        (["missing.toml"], "no such file"),
        ([], "plan needs a cluster"),
        (["k20-mpi", "--learners", "0"], "from 1 to 10000, not 0"),
        (["k20-mpi", "--learners", "10001"], "from 1 to 10000, not 10001"),
        (["k20-mpi", "--strategy", "bumf"], "did you mean 'bmuf'"),
        (["k20-mpi", "--set", "sgp.period=1"], "'sgp' is not planned"),
        (["k20-mpi", "--target", "loss=1"], "--target needs --record"),
        (["k20-mpi", "--change", "1"], "--change must be above 1"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], message: str) -> None:
    with pytest.raises(RoundelayError, match=message):
        plan(*arguments)


def test_bad_records(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RoundelayError, match="neither a run nor a study"):
        plan(cluster, "--record", str(tmp_path / "empty"))
    recorded(tmp_path / "run", "bmuf", [1.0])
    with pytest.raises(RoundelayError, match="no target; give one"):
        plan(cluster, "--record", str(tmp_path / "run"))
    with pytest.raises(RoundelayError, match="use SCORE=VALUE"):
        plan(cluster, "--record", str(tmp_path / "run"), "--target", "loss")
    with pytest.raises(RoundelayError, match="no evaluation has the score 'wer'; use one of: loss"):
        plan(cluster, "--record", str(tmp_path / "run"), "--target", "wer=3")

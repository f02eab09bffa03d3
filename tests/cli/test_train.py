"""``roundelay train`` as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from command_line import ROUNDELAY, call


@pytest.fixture
def tiny(root: Path) -> str:
    return str(root / "experiments" / "tiny.toml")


SHORT = ("--set", "budget.minibatches=60", "--set", "task.hidden=[8]")


def test_the_simulator_leaves_a_run_behind(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call("train", tiny, "--out", str(out), "--on", "simulator", "--learners", "4", "--json", *SHORT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["clock"] == "virtual"
    assert 0 < result["scores"]["loss"] < 5
    names = {path.name for path in out.iterdir()}
    assert names == {"settings.toml", "run.json", "record.jsonl", "model.safetensors", "model.json", "trace.json"}
    about = json.loads((out / "run.json").read_text())
    assert (about["learners"], about["batch"], about["global_batch"]) == (4, 32, 128)
    kinds = {json.loads(line)["event"] for line in (out / "record.jsonl").read_text().splitlines()}
    assert kinds >= {"compute", "communicate", "wait", "step", "evaluate", "totals"}
    trace = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in trace if event["ph"] == "M"} == {f"learner {k}" for k in range(4)}
    again = tmp_path / "again"
    call("train", str(out / "settings.toml"), "--out", str(again), "--on", "simulator")
    assert (again / "record.jsonl").read_bytes() == (out / "record.jsonl").read_bytes()
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("on", ["processes", "mpi"])
@pytest.mark.parametrize("strategy", ["synchronous", "asgd"])
def test_processes_and_mpi(on: str, strategy: str, tiny: str, tmp_path: Path) -> None:
    if on == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    words = ("--learners", "2", "--strategy", strategy, "--slow", "1=1.5", "--json", *SHORT)
    done = call("train", tiny, "--out", str(tmp_path / "run"), "--on", on, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["clock"] == "wall"
    lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert sorted(line["minibatch"] for line in lines if line["event"] == "step") == list(range(60))
    assert {line["clock"] for line in lines} == {"wall"}
    assert (tmp_path / "run" / "trace.json").exists()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["slow"] == {"1": 1.5}
    if strategy == "synchronous":
        call("train", tiny, "--out", str(tmp_path / "sim"), "--on", "simulator", *words)
        model = (tmp_path / "run" / "model.safetensors").read_bytes()
        assert model == (tmp_path / "sim" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--strategy", "synchronus"), "strategy.name: unknown 'synchronus'; did you mean 'synchronous'?"),
        (("--set", "budgt.epochs=1"), "unknown key 'budgt'; did you mean 'budget'?"),
        (("--set", "strategy.block=1"), "strategy: unknown key 'block'"),
        (("--learners", "0"), "--learners must be at least 1, not 0"),
        (("--slow", "7=2"), "--slow 7=2: use a learner from 0 to 0"),
        (("--slow", "x"), "--slow x: expected LEARNER=FACTOR"),
        (("--on", "moon"), "'moon' is not one of"),
        (("--hosts", "2"), "--hosts 2: also give --rendezvous"),
        (("--rendezvous", "nowhere", "--hosts", "2"), "rendezvous 'nowhere': write HOST:PORT"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words: tuple[str, ...], message: str, tiny: str, tmp_path: Path) -> None:
    done = call("train", tiny, "--out", str(tmp_path / "run"), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        (("--cluster", "experiments/clusters/two-racks.toml", "--on", "simulator", "--learners", "10"), [4, 4, 2]),
        (("--learners-per-node", "3", "--on", "simulator", "--learners", "6"), 3),
        (("--set", "strategy.learners_per_node=[1, 3]", "--on", "simulator", "--learners", "4"), [1, 3]),
    ],
)
def test_nodes_of_learners(words: tuple[str, ...], nodes: object, tiny: str, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call("train", tiny, "--out", str(out), "--strategy", "hierarchical", *words, *SHORT, cwd=root)
    assert done.returncode == 0, done.stderr
    assert tomllib.loads((out / "settings.toml").read_text())["strategy"]["learners_per_node"] == nodes


def test_a_port_in_use(tiny: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--rendezvous", where, "--hosts", "2", "--learners", "2", "--token", "secret")
        done = call("train", tiny, "--out", str(tmp_path / "run"), *words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"roundelay: rendezvous {where}: the port is in use; choose another"
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_left_alone(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    done = call("train", tiny, "--out", str(tmp_path), "--on", "simulator")
    assert (done.returncode, "already exists" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_model_that_no_memory_can_hold(tiny: str, tmp_path: Path) -> None:
    words = ("--on", "simulator", "--set", "task.hidden=[1000000, 1000000]")
    done = call("train", tiny, "--out", str(tmp_path / "run"), *words)
    said = "roundelay: not enough memory; use a smaller model, smaller minibatches or fewer learners\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "run").exists()


def test_unknown_commands_and_help() -> None:
    done = call("trian")
    assert (done.returncode, done.stderr) == (2, "roundelay: unknown command 'trian'; did you mean 'train'?\n")
    assert "Examples:" in call("train", "--help").stdout
    assert call("--version").stdout.startswith("roundelay, version")


def descendants(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == process:
            found += [int(status.parent.name), *descendants(int(status.parent.name))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("on", ["processes", "simulator", "mpi"])
def test_ctrl_c_ends_everything(on: str, tiny: str, tmp_path: Path) -> None:
    if on == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    words = (
        "train",
        tiny,
        "--out",
        str(tmp_path / "run"),
        "--on",
        on,
        "--learners",
        "2",
        "--set",
        "budget.epochs=10000",
    )
    run = subprocess.Popen([*ROUNDELAY, *words], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("epoch 1"):
            break
    family = descendants(run.pid)
    assert family or on == "simulator"
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(30) == 130
    assert run.stderr.read().strip().splitlines()[-1] == "roundelay: interrupted"
    run.stderr.close()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() for process in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [process for process in family if Path(f"/proc/{process}").exists()]

"""`roundelay launch`: scripts on several learners, which end well, badly, or are killed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import launched_scripts
import roundelay
from roundelay.errors import CommunicationError, RoundelayError, SettingsError

NEVER_JOINS = 'print("alone", flush=True)\n'
FOREVER = """
import os, subprocess, sys, time
import torch, roundelay
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
learner = roundelay.join(model, optimizer, roundelay.Synchronous())
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open(f"begun-{os.getpid()}-{child.pid}", "w").close()
for x in learner.share([torch.ones(1, 1)] * 1_000_000):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gone(process: int) -> bool:
    """Return whether a process has ended, or is a zombie that its parent has not waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"learners": 0}, "launch: learners: at least 1, not 0"),
        ({"learners": 2, "rejoins": -1}, "launch: rejoins: at least 0, not -1"),
    ],
)
def test_bad_numbers_are_refused(more: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=line):
        roundelay.launch(launched_scripts.write(tmp_path), **more)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing.py: there is no such file; name the Python script"):
        roundelay.launch(tmp_path / "nothing.py", learners=2)
    with pytest.raises(SettingsError, match="is a folder"):
        roundelay.launch(tmp_path, learners=2)


def test_two_launchers_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="torchrun has started this; start the script by one launcher only"):
        roundelay.launch(launched_scripts.write(tmp_path), learners=2)


@pytest.mark.slow
def test_all_learners_train_one_model(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch_here({"strategy": "synchronous", "epochs": 2}) == roundelay.LaunchedRun(3)
    assert launched_scripts.trained(here) == {0: list(range(60)), 1: list(range(60))}
    out = capfd.readouterr().out
    lines = out.splitlines()
    assert {line.partition("{")[0] for line in lines} == {"", "[1] ", "[2] "}
    assert one_result(out)["learners"] == 3


def one_result(out: str) -> dict[str, Any]:
    """Return what learners have printed, which is the same but for their numbers."""
    results = [json.loads(line[line.index("{") :]) for line in out.splitlines() if "{" in line]
    alike = {json.dumps(each | {"learner": 0}) for each in results}
    assert len(alike) == 1, alike
    first: dict[str, Any] = results[0]
    return first


def launch_here(job: dict[str, Any], learners: int = 3, **options: Any) -> roundelay.LaunchedRun:
    """Launch the script from this process, in the current folder."""
    script = launched_scripts.write(Path())
    return roundelay.launch(script, [json.dumps(job)], learners=learners, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "victim", "where", "count"),
    [
        ("synchronous", 1, "joined", 0),
        ("synchronous", 0, "before step", 5),
        ("synchronous", 2, "between", 0),
        ("bmuf", 1, "after step", 5),
        ("bmuf", 1, "between", 1),
        ("adpsgd", 0, "loop", 5),
        ("delay-by-one", 1, "after step", 4),
        ("easgd", 1, "loop", 5),
        ("asgd", 2, "before step", 5),
    ],
)
def test_a_killed_learner_is_missed_and_comes_back(
    strategy: str, victim: int, where: str, count: int, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = {"strategy": strategy, "epochs": 5, "victim": victim, "where": where, "count": count, "seconds": 0.02}
    done = launch_here(job)
    assert done.losses == [f"learner {victim} ended by SIGKILL"]
    assert done.restarted == 1
    found = launched_scripts.trained(here)
    assert [set(found[epoch]) for epoch in range(5)] == [{*range(60)}] * 5
    assert one_result(capfd.readouterr().out)["learners"] == 3
    assert " 4 " in f" {(here / f'notes-{victim}.txt').read_text().split()[-2]} ", "it trains again in the last epoch"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "how", "line"),
    [
        ("start", "os._exit(7)", "learner 1 ended by exit status 7 before it joined"),
        ("loop", "sys.exit(5)", "learner 1 ended by exit status 5"),
        ("end", "os.abort()", "learner 1 ended by SIGABRT"),
    ],
)
def test_every_end_is_noticed(where: str, how: str, line: str, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = {"strategy": "synchronous", "epochs": 2, "victim": 1, "where": where, "how": how}
    done = launch_here(job, rejoins=0)
    assert done.losses == [line]
    assert f"{line}; the others continue" in caplog.text
    assert set(launched_scripts.trained(here)[1]) == {*range(60)}


@pytest.mark.slow
def test_scripts_that_count_epochs_themselves_and_load_by_workers(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = {"strategy": "bmuf", "epochs": 5, "victim": 1, "where": "after step", "count": 3, "seconds": 0.02}
    launch_here(job | {"counted": False, "workers": 1})
    found = launched_scripts.trained(here)
    assert [set(found[epoch]) for epoch in range(5)] == [{*range(60)}] * 5
    assert one_result(capfd.readouterr().out)["learners"] == 3


@pytest.mark.slow
def test_all_lost_continue_from_the_checkpoint(here: Path) -> None:
    job = {"strategy": "bmuf", "epochs": 3, "victim": 0, "where": "between", "count": 1, "checkpoints": "saved"}
    done = launch_here(job | {"minibatches": 12}, learners=1, restarts=1)
    assert (done.resumed, done.restarted) == (1, 0)
    epochs = [line.split()[0] for line in (here / "notes-0.txt").read_text().splitlines()]
    assert epochs == ["0"] * 12 + ["1"] * 24 + ["2"] * 12, "the second epoch was not saved, and is trained again"


@pytest.mark.slow
def test_a_script_that_never_joins_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"script.py never called roundelay.join: it ran 3 times, each alone"):
        roundelay.launch(launched_scripts.write(tmp_path, NEVER_JOINS), learners=3, logs=tmp_path / "logs")
    assert capfd.readouterr().out == "alone\n"
    assert (tmp_path / "logs" / "learner-2.txt").read_text() == "alone\n"
    run = roundelay.launch(launched_scripts.write(tmp_path, NEVER_JOINS), learners=1)
    assert (run.learners, run.losses) == (1, [])


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_an_error_of_one_ends_all_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    job = {"strategy": "bmuf", "epochs": 9, "victim": 1, "where": "loop", "count": 4, "how": "raise OSError('disk')"}
    with pytest.raises(RoundelayError, match="^learner 1: OSError: disk"):
        launch_here(job)
    err = capfd.readouterr().err
    assert "[1] OSError: disk" in err.splitlines()
    assert "runpy" not in err, "the traceback begins in the script"


@pytest.mark.slow
def test_all_lost_at_once(tmp_path: Path) -> None:
    script = launched_scripts.write(tmp_path, "import os; os._exit(3)\n")
    with pytest.raises(CommunicationError, match="no learner is left: learner . ended by exit status 3 before it"):
        roundelay.launch(script, learners=2, rejoins=0, restarts=1)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_bad_end_after_training_is_an_error() -> None:
    job = {"strategy": "synchronous", "epochs": 1, "victim": 1, "where": "closed"}
    with pytest.raises(RoundelayError, match=r"^script.py: learner 1 ended by SIGKILL after its training$"):
        launch_here(job, learners=2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(number: int, tmp_path: Path) -> None:
    script = launched_scripts.write(tmp_path, FOREVER)
    process = launched_scripts.start(script, {}, "--learners", "2")
    try:
        while len(begun := list(tmp_path.glob("begun-*"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        status, _, err = launched_scripts.finish(process)
    finally:
        process.kill()
    started = [int(number) for path in begun for number in path.name.split("-")[1:]]
    deadline = time.monotonic() + 60
    while not all(map(gone, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, started))
    lines = {
        signal.SIGINT: "roundelay: interrupted",
        signal.SIGTERM: "launch: ended by SIGTERM; all learners are ended",
    }
    assert err.strip().splitlines() == ([lines[signal.Signals(number)]] if number in lines else [])
    assert status == (-number if number == signal.SIGKILL else 128 + number)


TWO_HOSTS = """
import json, logging, sys
import roundelay
from roundelay.runtimes.processes.hosts import Hosts
logging.basicConfig(format="%(message)s")
port, number, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
hosts = Hosts(f"127.0.0.1:{port}", 2, number, token="2d1c7a4f")
run = roundelay.launch("script.py", words, learners=3, hosts=hosts)
print("LOSSES", json.dumps(run.losses))
"""


@pytest.mark.slow
def test_two_hosts_of_which_one_loses_a_learner(here: Path) -> None:
    launched_scripts.write(here)
    job = {"strategy": "bmuf", "epochs": 4, "victim": 2, "where": "after step", "count": 5, "seconds": 0.02}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_HOSTS, str(port), str(number), json.dumps(job)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    (status, out, err), (other, far, complaint) = [launched_scripts.finish(each) for each in started]
    assert (status, other) == (0, 0), err + complaint
    assert "LOSSES []" in out
    assert 'LOSSES ["learner 2 ended by SIGKILL"]' in far
    assert "learner 2 ended by SIGKILL; it is started again" in complaint
    found = launched_scripts.trained(here)
    assert [set(found[epoch]) for epoch in range(4)] == [{*range(60)}] * 4
    assert len(out.splitlines()) + len(far.splitlines()) == 5, "each learner has printed its result once"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("where", ["joined", "before step"])
def test_the_loss_of_a_server_is_named_and_a_restart_helps(where: str, here: Path) -> None:
    job = {"strategy": "easgd", "epochs": 2, "victim": 0, "where": where, "count": 0, "checkpoints": "saved"}
    with pytest.raises(CommunicationError, match="a server was lost with the process of the learner that it lived in"):
        launch_here(job, learners=2)
    (here / "died").unlink()
    done = launch_here(job, learners=2, restarts=1)
    assert done.resumed == 1
    assert set(launched_scripts.trained(here)[1]) == {*range(60)}

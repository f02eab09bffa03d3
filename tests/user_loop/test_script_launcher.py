"""`roundelay launch`: scripts on several learners, which end well, badly, or are killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import launched_scripts
import roundelay
from roundelay.errors import CommunicationError, SettingsError

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


def run(folder: Path, job: dict[str, Any], *options: str, learners: int = 3) -> tuple[int, str, str]:
    script = launched_scripts.write(folder)
    return launched_scripts.finish(launched_scripts.start(script, job, "--learners", str(learners), *options))


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
def test_all_learners_train_one_model(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, {"strategy": "synchronous", "epochs": 2})
    assert status == 0, err
    assert launched_scripts.trained(tmp_path) == {0: list(range(60)), 1: list(range(60))}
    lines = out.splitlines()
    results = [json.loads(line[line.index("{") :]) for line in lines]
    assert {line.partition("{")[0] for line in lines} == {"", "[1] ", "[2] "}
    assert len({str(each["weights"]) for each in results}) == 1
    assert {each["learners"] for each in results} == {3}


@pytest.mark.slow
def test_a_script_that_never_joins_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"script.py never called roundelay.join: it ran 3 times, each alone"):
        roundelay.launch(launched_scripts.write(tmp_path, NEVER_JOINS), learners=3, logs=tmp_path / "logs")
    assert capfd.readouterr().out == "alone\n"
    assert (tmp_path / "logs" / "learner-2.txt").read_text() == "alone\n"
    run = roundelay.launch(launched_scripts.write(tmp_path, NEVER_JOINS), learners=1)
    assert (run.learners, run.losses) == (1, [])


@pytest.mark.slow
def test_an_error_of_one_ends_all_with_its_line(tmp_path: Path) -> None:
    job = {"strategy": "bmuf", "epochs": 9, "victim": 1, "where": "loop", "count": 4, "how": "raise OSError('disk')"}
    status, _, err = run(tmp_path, job)
    assert status == 2
    assert err.splitlines()[-1] == "roundelay: learner 1: OSError: disk"
    assert "[1] OSError: disk" in err.splitlines()
    assert "runpy" not in err, "the traceback begins in the script"


@pytest.mark.slow
def test_all_lost_at_once(tmp_path: Path) -> None:
    script = launched_scripts.write(tmp_path, "import os; os._exit(3)\n")
    with pytest.raises(CommunicationError, match="no learner is left: learner . ended by exit status 3 before it"):
        roundelay.launch(script, learners=2, rejoins=0, restarts=1)


@pytest.mark.slow
def test_a_bad_end_after_training_is_an_error(tmp_path: Path) -> None:
    job = {"strategy": "synchronous", "epochs": 1, "victim": 1, "where": "closed"}
    status, _, err = run(tmp_path, job, learners=2)
    assert (status, err.splitlines()[-1]) == (
        2,
        "roundelay: script.py: learner 1 ended by SIGKILL after its training",
    )


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

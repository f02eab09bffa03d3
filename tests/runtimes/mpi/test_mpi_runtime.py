from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mpi_jobs
from roundelay.errors import CommunicationError, Mismatch, NumericalError, RoundelayError, SettingsError
from roundelay.runtimes.mpi import mpi_launcher as mpi_launch
from roundelay.runtimes.mpi import mpi_runtime as mpi
from tiny_jobs import simulated

JOBS = Path(mpi_jobs.__file__)
SUPPORT = str(JOBS.parent)

if importlib.util.find_spec("mpi4py") is None:
    pytest.skip("mpi4py is not installed", allow_module_level=True)
try:
    mpi_launch.find_mpiexec()
except RoundelayError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]  # each starts Python and torch on every rank


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ranks find the tests' own modules, and compute here as they do."""
    monkeypatch.setenv("PYTHONPATH", SUPPORT, prepend=os.pathsep)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(function: str, settings: dict[str, Any] | None = None, *, size: int, **more: Any) -> list[Any]:
    return mpi_launch.run(f"{JOBS}:{function}", settings or {}, size=size, **more)


def trained(record: Path) -> list[int]:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return sorted(line["minibatch"] for line in lines if line["event"] == "step")


AGREEMENT = {
    f"{strategy} {optimizer}": {"strategy": strategy, "optimizer": optimizer, "minibatches": 200}
    for strategy in ("synchronous", "averaging")
    for optimizer in ("sgd", "adamw")
} | {"in buckets": {"strategy": "synchronous", "hyperparameters": {"bucket_bytes": 256}, "minibatches": 60}}


@pytest.fixture(scope="module")
def agreement() -> dict[int, list[list[Any]]]:
    """What 2 and 4 ranks come to, by rank and job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SUPPORT, prepend=os.pathsep)
        return {size: run("train_all", {"jobs": list(AGREEMENT.values())}, size=size) for size in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("job", AGREEMENT)
def test_ranks_equal_the_simulator_to_the_bit(job: str, size: int, agreement: dict[int, list[list[Any]]]) -> None:
    expected = simulated(mpi_jobs.job_of(AGREEMENT[job]), size).consensus
    for results in agreement[size]:
        assert torch.equal(torch.tensor(results[list(AGREEMENT).index(job)]["weights"]), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_verbs(size: int) -> None:
    assert run("verbs", size=size) == list(range(size))


@pytest.mark.parametrize("strategy", ["synchronous", "gossip"])
def test_uneven_rounds_lose_no_minibatch(strategy: str, tmp_path: Path) -> None:
    settings = {"strategy": strategy, "minibatches": 10, "task": {"frames_per_epoch": 160}}
    run("train", settings, size=4, folder=tmp_path)
    assert trained(tmp_path / "record.jsonl") == list(range(10))
    parts = [f"record-{rank}.jsonl" for rank in range(4)]  # kept, for a run that goes on after a stop
    assert sorted(path.name for path in tmp_path.iterdir()) == [*parts, "record.jsonl"]


def test_requests_during_training_conserve_the_mean(tmp_path: Path) -> None:
    settings = {"strategy": "gossip", "minibatches": 200, "debug": True}
    results = run("train", settings, size=4, folder=tmp_path)
    assert all(result["weights"] == results[0]["weights"] for result in results)
    assert results[0]["scores"]["loss"] < 1.2
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert trained(tmp_path / "record.jsonl") == list(range(200))
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert {"compute", "serve", "wait", "evaluate", "totals", "step"} <= {line["event"] for line in lines}
    assert {line["clock"] for line in lines} == {"wall"}
    totals = [line for line in lines if line["event"] == "totals"]
    assert sorted(line["member"] for line in totals) == [f"learner {k}" for k in range(4)]
    assert all(line["bytes"] > 0 for line in totals)


def test_a_server_beside_learners_after_a_warmup(tmp_path: Path) -> None:
    settings = {"strategy": "summing", "minibatches": 40, "budget": {"warmup": 7}}
    results = run("train", settings, size=3, folder=tmp_path)
    assert all(result["weights"] == results[0]["weights"] for result in results)
    assert trained(tmp_path / "record.jsonl") == list(range(40))
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert {line["member"] for line in lines if line["event"] == "serve"} == {"server 0"}


def test_a_slow_learner_takes_fewer_minibatches(tmp_path: Path) -> None:
    settings = {"strategy": "gossip", "minibatches": 60}
    run("train", settings, size=2, folder=tmp_path, slow={1: 20.0})
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    steps = [line["member"] for line in lines if line["event"] == "step"]
    assert steps.count("learner 1") < steps.count("learner 0") / 2


def test_the_common_counter_needs_nothing_from_its_owner() -> None:
    results = run("counter", size=4)
    assert sorted(number for result in results for number in result["got"]) == list(range(400))
    assert sorted(result["other"] for result in results) == [0, 5, 10, 15]
    assert max(result["slowest"] for result in results) < 0.2  # the owner sleeps for 0.5


def test_requests_and_means_move_while_a_learner_computes() -> None:
    asked, other = run("overlap", size=2)
    assert other["slowest"] < 0.5  # the computation takes 1 s
    assert asked["waited"] < 0.3


def test_waiting_leaves_the_core_to_others() -> None:
    assert max(run("idle", size=4)) < 0.3


# -- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("own", NumericalError, "learner 1: the loss is not what it was"),
        ("other", RoundelayError, "learner 1: ZeroDivisionError: by hand"),
        ("kill", CommunicationError, "mpiexec: a rank was ended by SIGKILL; resume the run"),
    ],
)
def test_a_rank_that_fails_ends_all(
    how: str, kind: type[RoundelayError], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = {"strategy": "averaging", "minibatches": 100, "how": how, "rank": 1}
    with pytest.raises(kind) as caught:
        run("fail", settings, size=2, folder=tmp_path)
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert capfd.readouterr() == ("", "")
    parts = [f"record-{rank}.jsonl" for rank in range(2)]  # kept, for a run that goes on after a stop
    assert sorted(path.name for path in tmp_path.iterdir()) == [*parts, "record.jsonl"]


@pytest.mark.parametrize("computing", [False, True])
def test_a_rank_that_fails_to_serve_ends_all(computing: bool) -> None:
    with pytest.raises(RoundelayError, match="learner 0: ZeroDivisionError: while serving"):
        run("fail_to_serve", {"computing": computing}, size=2)


def test_mismatched_collectives_are_named() -> None:
    with pytest.raises(Mismatch, match=r"collective 3: rank \d called mean\(\(\d,\) float32\), rank \d called mean"):
        run("mismatch", size=2)


def test_a_loss_cannot_be_survived() -> None:
    with pytest.raises(CommunicationError, match="does not survive; resume the run"):
        run("assemble_again", size=2)


@pytest.mark.parametrize(("entry", "message"), [("no_such", "has no no_such"), ("nothing.py:x", "no file")])
def test_an_entry_that_is_not_there(entry: str, message: str) -> None:
    with pytest.raises(RoundelayError, match=message):
        mpi_launch.run(entry if ":" in entry else f"{JOBS}:{entry}", {}, size=2)


def test_no_learners() -> None:
    with pytest.raises(SettingsError, match="at least 1, not 0"):
        run("train", size=0)


@pytest.mark.parametrize(("blow", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_nothing_is_left_behind(blow: signal.Signals, status: int, tmp_path: Path) -> None:
    code = (
        "import sys; from roundelay.runtimes.mpi import mpi_launcher\n"
        "try: mpi_launcher.run(sys.argv[1], {'folder': sys.argv[2]}, size=2)\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    (temporary := tmp_path / "temporary").mkdir()
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, f"{JOBS}:sleep", str(tmp_path)], env=os.environ | {"TMPDIR": str(temporary)}
    )
    try:
        files = [tmp_path / f"pid-{rank}" for rank in range(2)]
        _until(lambda: all(file.exists() and file.read_text() for file in files), 30)
        pids = [int(file.read_text()) for file in files]
        launcher.send_signal(blow)
        assert launcher.wait(20) == status
        _until(lambda: not any(_alive(pid) for pid in pids), 10)
        _until(lambda: not any(temporary.glob("roundelay*")), 5)
    finally:
        launcher.kill()


JOINING = """
import pathlib, sys, torch, roundelay
from torch import nn
from roundelay.runtimes.mpi import mpi_runtime
mpi_runtime.EXIT_SECONDS = 0.5
torch.manual_seed(0)
model = nn.Linear(2, 1)
learner = roundelay.join(model, torch.optim.SGD(model.parameters(), lr=0.1), roundelay.Synchronous(bucket_bytes=4))
for x, y in learner.share([(torch.randn(4, 2), torch.ones(4, 1)) for _ in range(11)]):
    with learner.minibatch():
        nn.functional.mse_loss(model(x), y).backward()
    if learner.rank == 1 and sys.argv[1] == "raise":
        raise ValueError("a bug of the user's own")
    if learner.rank == 1 and sys.argv[1] == "exit":
        sys.exit("enough")
with learner.consensus() as consensus:
    pathlib.Path(sys.argv[2], str(learner.rank)).write_text(str(consensus.tolist()))
learner.close()
"""

HERE = """
import sys
from roundelay.errors import SettingsError
from roundelay.runtimes.mpi import mpi_launcher
def prepare():
    if sys.argv[2:]:
        raise SettingsError("runs/a: exists already")
mpi_launcher.run_here(sys.argv[1], {}, prepare=prepare)
"""


def under_mpiexec(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*mpi_launch.find_mpiexec(), "-n", "2", sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)


def test_a_loop_of_the_users_own_joins(tmp_path: Path) -> None:
    done = under_mpiexec(JOINING, "end", str(tmp_path))
    assert done.returncode == 0
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() != "[]"
    assert "WARN" not in done.stderr  # as MPICH says of windows that nobody gave back


def test_a_loop_of_the_users_own_that_raises_ends_all() -> None:
    done = under_mpiexec(JOINING, "raise")
    assert done.returncode != 0
    assert "ValueError: a bug of the user's own" in done.stderr


def test_a_rank_that_leaves_early_ends_all() -> None:
    done = under_mpiexec(JOINING, "exit")
    assert done.returncode == 2
    assert "roundelay: learner 1 exited while others still train" in done.stderr


def test_a_rank_under_mpiexec_that_fails_says_so_in_a_line() -> None:
    done = under_mpiexec(HERE, f"{JOBS}:assemble_again")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("roundelay: ")]
    assert lines[0].endswith("a learner was lost, which an MPI job does not survive; resume the run")


def test_what_rank_0_prepares_may_fail() -> None:
    done = under_mpiexec(HERE, f"{JOBS}:assemble_again", "fail")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if "exists" in line] == ["roundelay: runs/a: exists already"]


def test_what_a_rank_has_written_is_read_before_it_ends_all() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"why\n")
    late = threading.Timer(0.1, os.read, (reader, 100))
    late.start()
    mpi._await_reader(writer)
    assert select.select([reader], [], [], 0)[0] == []
    late.join()
    os.close(reader)
    os.close(writer)
    mpi._await_reader(writer)  # closed: nobody reads it


def test_under_mpi_is_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in mpi.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not mpi.under_mpi()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert mpi.under_mpi()


def _until(true: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False

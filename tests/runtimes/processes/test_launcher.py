"""Processes start, end and fail cleanly, and none is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import host_launchers
import process_jobs
from roundelay import errors
from roundelay.errors import CommunicationError, NumericalError, RoundelayError, SettingsError
from roundelay.runs.record import merge_records
from roundelay.runtimes.entry_point import find_entry, rebuild_error
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.options import Options
from stranger import ports_of


def test_bad_arguments() -> None:
    with pytest.raises(SettingsError, match="at least 1, not 0"):
        launcher.run(process_jobs.entry("train"), {}, size=0)
    with pytest.raises(SettingsError, match="package.module:function"):
        find_entry("nothing")
    with pytest.raises(SettingsError, match="no file"):
        find_entry("nowhere.py:main")
    with pytest.raises(SettingsError, match="has no nothing"):
        find_entry("roundelay.errors:nothing")
    assert find_entry("roundelay.errors:suggest").__name__ == "suggest"


def test_an_error_is_made_anew() -> None:
    error = rebuild_error({"type": "MissingExtra", "message": "learner 1: no soxr", "traceback": "…"})
    assert type(error) is errors.MissingExtra
    assert str(error) == "learner 1: no soxr"
    assert type(rebuild_error({"type": "ValueError", "message": "x", "traceback": ""})) is RoundelayError


def test_records_are_merged_by_time(tmp_path: Path) -> None:
    (tmp_path / "record-0.jsonl").write_text('{"time":1,"k":0}\n{"time":3,"k":1}\n')
    (tmp_path / "record-1.jsonl").write_text('{"time":2,"k":2}\n{"time":4,"k"')  # killed while it wrote
    merge_records(tmp_path, keep=True)
    assert len(list(tmp_path.iterdir())) == 3
    merge_records(tmp_path, keep=True)
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["k"] for line in lines] == [0, 2, 1]
    (tmp_path / "record.jsonl").unlink()
    merge_records(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["record.jsonl"]


@pytest.mark.slow
def test_results_come_in_order_and_threads_are_set() -> None:
    results = launcher.run(process_jobs.entry("tell"), {"greeting": "grüß Gott"}, size=3, options=Options(threads=2))
    assert [result["learner"] for result in results] == [0, 1, 2]
    assert {result["greeting"] for result in results} == {"grüß Gott"}
    assert {result["threads"] for result in results} == {2}
    assert len({result["process"] for result in results} | {os.getpid()}) == 4


@pytest.mark.slow
def test_a_learner_that_raises_ends_all() -> None:
    began = time.monotonic()
    with pytest.raises(NumericalError) as numerical:
        launcher.run(process_jobs.entry("fail"), {"learner": 1, "how": "roundelay"}, size=3)
    assert str(numerical.value) == "learner 1: the loss is nan"
    with pytest.raises(RoundelayError) as raised:
        launcher.run(process_jobs.entry("fail"), {"learner": 2, "how": "foreign"}, size=3)
    assert str(raised.value) == "learner 2: ValueError: what is this?"
    assert "in fail" in "".join(raised.value.__notes__), "with the traceback of its process"
    assert time.monotonic() - began < 60
    assert not learners_of(os.getpid())


@pytest.mark.slow
def test_a_learner_whose_serving_raises_ends_all() -> None:
    with pytest.raises(RoundelayError) as raised:
        launcher.run(process_jobs.entry("fail_serving"), {}, size=2)
    assert str(raised.value) in {f"learner {k}: ValueError: will not serve" for k in range(2)}


@pytest.mark.slow
def test_nobody_left() -> None:
    with pytest.raises(CommunicationError, match="no learner is left: learner 0 ended by SIGKILL"):
        launcher.run(process_jobs.entry("fail"), {"learner": 0, "how": "kill"}, size=1)
    with pytest.raises(CommunicationError, match="exit status 7"):
        launcher.run(process_jobs.entry("fail"), {"learner": 0, "how": "exit"}, size=1)


@pytest.mark.slow
def test_no_leaks() -> None:
    """Neither files, threads nor processes, over 20 runs; the fork server stays for the next run."""
    settings = {"strategy": "gossip", "minibatches": 6}

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    launcher.run(process_jobs.entry("train"), settings, size=2)
    before = count()
    for _ in range(20):
        launcher.run(process_jobs.entry("train"), settings, size=2)
    ended = time.monotonic() + 30
    while count() > before and time.monotonic() < ended:
        time.sleep(0.05)  # a thread may need a moment to end
    assert count() <= before
    assert not learners_of(os.getpid())


# -- launchers in processes of their own ---------------------------------------------------------------------------


def learners_of(launcher: int) -> list[int]:
    """Return the processes that the fork servers of ``launcher`` have started."""
    return [grandchild for child in children_of(launcher) for grandchild in children_of(child)]


def children_of(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{process}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


def await_end(processes: list[int], seconds: float = 20.0) -> list[int]:
    """Return which of ``processes`` are alive after so long, or at once when none is."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


@contextlib.contextmanager
def started_launcher(tmp_path: Path, **settings: Any) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a launcher whose learners train for long; yield it and its learners, once they train."""
    code = (
        "import json, sys\nsys.path.insert(0, sys.argv[1])\nimport process_jobs\n"
        "from roundelay.runtimes.processes import launcher\n"
        "try:\n    launcher.run(process_jobs.entry('train_traced'), json.loads(sys.argv[2]), size=3)\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    wanted = {"strategy": "gossip", "minibatches": 10**6, "task": {"pause_seconds": 0.01}, **settings}
    arguments = [str(Path(process_jobs.__file__).parent), json.dumps({**wanted, "folder": str(tmp_path)})]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("pid-?"))) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        learners = [json.loads(file.read_text())[0] for file in sorted(tmp_path.glob("pid-?"))]
        everyone = [*children_of(process.pid), *learners]
        try:
            assert len(learners) == 3, process.stderr.read() if process.poll() is not None and process.stderr else ""
            yield process, everyone
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_interrupt(tmp_path: Path, whole_group: bool) -> None:
    with started_launcher(tmp_path) as (process, everyone):
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert not await_end(everyone)


@pytest.mark.slow
def test_told_to_end_in_the_middle_of_anything(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommunicationError, match="no learner is left: learner 0 ended by exit status"):
        launcher.run(process_jobs.entry("end_while_waiting"), {"strategy": "gossip", "minibatches": 10}, size=1)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_launcher_leaves_nobody(tmp_path: Path) -> None:
    with started_launcher(tmp_path) as (process, everyone):
        os.kill(everyone[-1], signal.SIGSTOP)  # not even one that cannot hear
        process.kill()
        process.wait(30)
        assert not await_end(everyone)


@pytest.mark.slow
def test_a_killed_fork_server_ends_the_run(tmp_path: Path) -> None:
    with started_launcher(tmp_path) as (process, everyone):
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert "the process that starts learners has ended" in process.stderr.read()
        assert not await_end(everyone)


# -- another user of the machine -----------------------------------------------------------------------------------


def end_among_strangers(what: dict[str, Any], settings: dict[str, Any]) -> tuple[Any, set[int], str]:
    """Run a launcher while another user attacks each of its ports; return its results, the ports, what he says."""
    command = [sys.executable, str(host_launchers.SUPPORT / "stranger.py"), json.dumps(settings)]
    stranger = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdin is not None
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        victim, seen = host_launchers.start(what, "setsid"), set[int]()
        while victim.poll() is None:
            for port in ports_of(victim.pid) - seen:
                stranger.stdin.write(f"{port}\n")
                stranger.stdin.flush()
                seen.add(port)
            time.sleep(0.005)
        said, _ = stranger.communicate(timeout=60)
        return host_launchers.outcome(victim), seen, said
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.mark.slow
def test_a_stranger_cannot_change_a_run() -> None:
    """As root, he is another user; else he has our own rights, and finds nothing either."""
    settings = {"strategy": "synchronous", "minibatches": 40}
    what = {"entry": "train", "settings": settings, "size": 2}
    results, ports, said = end_among_strangers(what, settings | {"minibatches": 1})
    assert said == "done\n"
    assert ports == set()
    alone = launcher.run(process_jobs.entry("train"), settings, size=2)
    assert [result["digest"] for result in results] == [result["digest"] for result in alone]


@pytest.mark.slow
def test_a_stranger_at_the_ports_of_gloo() -> None:
    """Learners that cannot share memory listen on loopback; nonsense that comes there changes nothing."""
    settings = {"strategy": "synchronous", "minibatches": 40}
    what = {"entry": "train", "settings": settings, "size": 2, "options": {"transport": "gloo"}}
    results, ports, said = end_among_strangers(what, settings | {"minibatches": 1})
    assert said.endswith("done\n")
    assert ports
    alone = launcher.run(process_jobs.entry("train"), settings, size=2)
    assert [result["digest"] for result in results] == [result["digest"] for result in alone]

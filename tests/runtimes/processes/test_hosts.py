"""Several hosts: two launchers that meet, on one machine and between two network namespaces; and torchrun."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import host_launchers
import process_jobs
from fault_runs import await_true, lines_of
from host_launchers import outcome, start, two_namespaces
from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.hosts import Hosts, _stretch, rendezvous, share
from roundelay.runtimes.processes.transport.key_value_store import start_store

TOKEN = host_launchers.TOKEN


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


# -- the rendezvous ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rendezvous", ["nowhere", "1.2.3.4", "1.2.3.4:", ":29500", "1.2.3.4:99999", "1.2.3.4:x"])
def test_a_rendezvous_is_written_so(rendezvous: str) -> None:
    with pytest.raises(SettingsError, match="write HOST:PORT"):
        Hosts(rendezvous, 2, token=TOKEN).parse()


def test_bad_numbers_of_hosts() -> None:
    with pytest.raises(SettingsError, match="at least 1, not 0"):
        Hosts("127.0.0.1:29500", 0, token=TOKEN).parse()
    with pytest.raises(SettingsError, match="2 are too few for 3 hosts"):
        launcher.run(process_jobs.entry("train"), {}, size=2, hosts=Hosts("127.0.0.1:29500", 3, token=TOKEN))


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"rendezvous 127.0.0.1:{port}: the port is in use; choose another"):
            launcher.run(process_jobs.entry("train"), {}, size=2, hosts=Hosts(f"127.0.0.1:{port}", 2, token=TOKEN))


def test_a_host_that_never_comes() -> None:
    at = f"127.0.0.1:{free_port()}"
    with pytest.raises(CommunicationError, match=r"only 1 of 2 hosts came in 0\.3 s"):
        launcher.run(process_jobs.entry("train"), {}, size=2, hosts=Hosts(at, 2, timeout_seconds=0.3, token=TOKEN))
    with pytest.raises(CommunicationError, match=r"the first host did not come in 0\.3 s"):
        launcher.run(
            process_jobs.entry("train"), {}, size=2, hosts=Hosts(at, 2, number=1, timeout_seconds=0.3, token=TOKEN)
        )


def test_one_host_too_many() -> None:
    store, port = start_store("127.0.0.1", secret=_stretch(TOKEN))
    for number in range(2):
        store.set(f"host/{number}", True)
    store.add("hosts", 1)
    with (
        pytest.raises(SettingsError, match="all 2 hosts are there already"),
        rendezvous(Hosts(f"127.0.0.1:{port}", 2, number=1, timeout_seconds=5, token=TOKEN), 2),
    ):
        pass


def test_two_runs_that_meet_by_mistake() -> None:
    port = free_port()
    first = threading.Thread(
        target=_meet_quietly, args=(Hosts(f"127.0.0.1:{port}", 2, 0, timeout_seconds=3, token="a"),)
    )
    first.start()
    try:
        with (
            pytest.raises(SettingsError, match="another --token"),
            rendezvous(Hosts(f"127.0.0.1:{port}", 2, 1, timeout_seconds=3, token="b"), 2),
        ):
            pass
    finally:
        first.join()


def _meet_quietly(hosts: Hosts) -> None:
    with contextlib.suppress(CommunicationError), rendezvous(hosts, 2):
        pass


def test_shares_of_the_learners() -> None:
    for size, count in itertools.product((3, 4, 7), (1, 2, 3)):
        shares = [share(size, k, count) for k in range(count)]
        assert [learner for ranks in shares for learner in ranks] == list(range(size))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.slow
def test_two_launchers_on_one_machine(tmp_path: Path) -> None:
    """Learners of different launchers talk over gloo, as between hosts."""
    settings = {"strategy": "synchronous", "minibatches": 40}
    at = f"127.0.0.1:{free_port()}"
    what = {"entry": "train", "settings": settings, "size": 2}
    hosts = [start({**what, "hosts": {"rendezvous": at, "count": 2, "number": number}}) for number in (0, 1)]
    first, second = (outcome(host) for host in hosts)
    assert first == second
    local = launcher.run(process_jobs.entry("train"), settings, size=2)
    assert [result["digest"] for result in first] == [result["digest"] for result in local]


@pytest.mark.slow
def test_an_error_on_one_host_ends_the_other() -> None:
    at = f"127.0.0.1:{free_port()}"
    what = {"entry": "fail", "settings": {"learner": 1, "how": "roundelay"}, "size": 2}
    hosts = [start({**what, "hosts": {"rendezvous": at, "count": 2, "number": number}}) for number in (0, 1)]
    for host in hosts:
        assert outcome(host) == {"error": "NumericalError", "message": "learner 1: the loss is nan"}


# -- two network namespaces ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hosts_as_namespaces() -> None:
    settings = {"strategy": "averaging", "minibatches": 60}
    with two_namespaces() as ((one, address), (two, _)):
        hosts = {"rendezvous": f"{address}:29511", "count": 2}
        what = {"entry": "train", "settings": settings, "size": 4, "hosts": hosts}
        second = start(what, "ip", "netns", "exec", two)
        first = start(what, "ip", "netns", "exec", one)
        results = outcome(first)
        assert results == outcome(second)
    assert len({result["digest"] for result in results}) == 1
    assert len(results) == 4
    assert results[0]["loss"] < 0.7


@pytest.mark.slow
def test_a_host_that_vanishes(tmp_path: Path) -> None:
    """The cable is cut: no connection is closed, only silence tells."""
    settings = {
        "strategy": "gossip", "minibatches": 200, "task": {"pause_seconds": 0.02}, "folder": str(tmp_path),
    }  # fmt: skip
    with two_namespaces() as ((one, address), (two, _)):
        hosts = {"rendezvous": f"{address}:29511", "count": 2, "silence_seconds": 5.0}
        what = {
            "entry": "train_traced", "settings": settings, "size": 4, "hosts": hosts,
            "folder": str(tmp_path), "options": {"heartbeat_timeout": 2.0},
        }  # fmt: skip
        first, second = start(what, "ip", "netns", "exec", one), start(what, "ip", "netns", "exec", two)
        await_true(lambda: len({line["member"] for line in lines_of(tmp_path) if line["event"] == "step"}) == 4)
        subprocess.run(["ip", "-n", two, "link", "set", "lo", "down"], check=True)
        cable = subprocess.run(["ip", "-n", two, "-br", "link"], check=True, capture_output=True, text=True).stdout
        name = next(line.split("@")[0] for line in cable.splitlines() if line.startswith("rdl"))
        subprocess.run(["ip", "-n", two, "link", "set", name, "down"], check=True)
        results = outcome(first)
        lonely = outcome(second)
    assert lonely["error"] == "CommunicationError"
    assert "the first host is gone" in lonely["message"]
    assert [result is None for result in results] == [False, False, True, True]
    trained = {
        json.loads(line)["minibatch"]
        for part in tmp_path.glob("record-*.jsonl")
        for line in part.read_text().splitlines()
        if line.startswith('{"event":"step"')
    }
    assert trained == set(range(200))


# -- torchrun -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(host_launchers.SUPPORT)!r})\nimport process_jobs\n"
        "from pathlib import Path\nfrom roundelay.runtimes.processes.process_runtime import from_environment\n"
        "runtime = from_environment()\nassert runtime is not None and not runtime.elastic\n"
        "result = process_jobs.train(runtime, {'strategy': 'synchronous', 'minibatches': 40})\n"
        f"(Path({str(tmp_path)!r}) / f'{{runtime.process.initial_rank}}').write_text(result['digest'])\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    local = launcher.run(process_jobs.entry("train"), {"strategy": "synchronous", "minibatches": 40}, size=2)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [result["digest"] for result in local]

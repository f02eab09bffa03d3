"""Learners on real processes train as the simulator does, to the bit where they step together."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import process_jobs
from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.blocking import StrategyLock
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes import launcher as launch
from roundelay.runtimes.processes.membership import GenerationAgreement
from roundelay.runtimes.processes.options import Options, ProcessInfo, TransportName
from roundelay.runtimes.processes.process_runtime import Endpoint, from_environment
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.key_value_store import start_store
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.runtimes.wall_clock import WallClock

pytestmark = pytest.mark.slow
KINDS = {"compute", "communicate", "wait", "serve", "evaluate"}


def simulated(settings: dict[str, Any], learners: int) -> str:
    return process_jobs.digest(
        simulate(lambda runtime: process_jobs.make_training(runtime, settings), Cluster(), learners=learners).consensus
    )


@pytest.mark.parametrize(("size", "transport"), [(2, "gloo"), (2, "shared"), (4, "shared")])
@pytest.mark.parametrize("strategy", ["synchronous", "averaging"])
@pytest.mark.parametrize("adam", [False, True])
def test_same_bits_as_the_simulator(size: int, transport: str, strategy: str, adam: bool) -> None:
    settings: dict[str, Any] = {"strategy": strategy, "minibatches": 200, "task": {"adam": adam}}
    options = Options(transport=transport)  # type: ignore[arg-type]  # one of its literals
    results = launch.run(process_jobs.entry("train"), settings, size=size, options=options)
    assert {result["digest"] for result in results} == {simulated(settings, size)}


def test_buckets_give_the_same_bits() -> None:
    settings: dict[str, Any] = {"strategy": "synchronous", "minibatches": 80, "task": {"width": 300}}
    whole = launch.run(process_jobs.entry("train"), settings, size=2)
    parts = launch.run(process_jobs.entry("train"), {**settings, "with": {"bucket_bytes": 512}}, size=2)
    assert {result["digest"] for result in whole} == {result["digest"] for result in parts}


@pytest.mark.parametrize("transport", ["gloo", "shared"])
@pytest.mark.parametrize("strategy", ["gossip", "server", "ring"])
def test_asynchronous_strategies_train(strategy: str, transport: str) -> None:
    settings = {"strategy": strategy, "minibatches": 200, "warmup": 20}
    options = Options(transport=transport)  # type: ignore[arg-type]  # one of its literals
    results = launch.run(process_jobs.entry("train"), settings, size=3, options=options)
    assert len({result["digest"] for result in results}) == 1, "one consensus"
    assert results[0]["loss"] < 0.7


def test_what_is_recorded(tmp_path: Path) -> None:
    settings = {"strategy": "gossip", "minibatches": 80, "task": {"pause_seconds": 0.004}}
    launch.run(process_jobs.entry("train"), settings, size=2, folder=tmp_path, options=Options(slow={1: 3.0}))
    events = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert {event["clock"] for event in events} == {"wall"}
    assert {event["member"] for event in events} == {"learner 0", "learner 1"}
    assert {event["event"] for event in events} & KINDS == KINDS
    steps = Counter(event["minibatch"] for event in events if event["event"] == "step")
    assert steps == Counter(range(80)), "each minibatch once"
    totals = {event["member"]: event for event in events if event["event"] == "totals"}
    assert all(totals[member]["bytes"] > 0 for member in totals)
    mean = {}
    for member in totals:
        spans = [e["seconds"] for e in events if e["event"] == "compute" and e["member"] == member]
        mean[member] = sorted(spans)[len(spans) // 2]
    assert mean["learner 1"] > 2 * mean["learner 0"], "slowed down three times"
    mine = [e for e in events if e["member"] == "learner 0" and e["event"] in ("compute", "wait", "communicate")]
    for a, b in itertools.pairwise(mine):
        assert a["time"] + a["seconds"] <= b["time"] + 1e-4, "one thing at a time"


def test_no_environment_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert from_environment() is None
    assert environment.find({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "a batch script is no step"


def endpoint(transport: TransportName, host: str = "here", device: str = "cpu") -> Endpoint:
    return Endpoint(ProcessInfo(0, 1, host=host), transport, torch.device(device), lambda reason: None)


def connect(one: Endpoint, addresses: list[dict[str, Any]]) -> Communicator:
    store, _ = start_store("127.0.0.1")
    agreement = GenerationAgreement(0, list(range(len(addresses))), {}, addresses)
    recorder = WallClock(Record(None, clock="wall"), 0, 1)
    session, comm = one.connect(agreement, 0, StrategyLock(), recorder, store)
    session.close()
    return comm


@pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")
def test_memory_is_shared_if_all_members_can() -> None:
    one = endpoint("auto")
    assert isinstance(connect(one, [one.address]), SharedMemoryCommunicator)
    other = endpoint("gloo")
    assert other.address["memory"] is None
    assert isinstance(connect(other, [other.address]), TorchCommunicator)
    on_device = endpoint("auto", device="meta")
    assert on_device.address["memory"] is not None, "messages of accelerators go through it too"
    assert isinstance(connect(on_device, [on_device.address]), TorchCommunicator)


@pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")
@pytest.mark.parametrize("other", [{"host": "there", "memory": {}}, {"host": "here", "memory": None}])
def test_shared_memory_that_some_member_lacks_is_refused(other: dict[str, Any]) -> None:
    one = endpoint("shared")
    with pytest.raises(SettingsError, match="cannot share memory; use gloo"):
        connect(one, [one.address, other])
    one.close()

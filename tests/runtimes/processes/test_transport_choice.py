"""Which transport learners use together."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.blocking import StrategyLock
from roundelay.runtimes.processes.membership import GenerationAgreement
from roundelay.runtimes.processes.options import ProcessInfo, TransportName
from roundelay.runtimes.processes.process_runtime import Endpoint
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.key_value_store import start_store
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator
from roundelay.runtimes.wall_clock import WallClock


def endpoint(transport: TransportName, host: str = "here", device: str = "cpu") -> Endpoint:
    return Endpoint(ProcessInfo(0, 1, host=host), transport, device, lambda reason: None)


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
    for chosen in (endpoint("gloo"), endpoint("auto", device="cuda")):
        assert chosen.address["memory"] is None
        assert isinstance(connect(chosen, [chosen.address]), TorchCommunicator)


@pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")
@pytest.mark.parametrize("other", [{"host": "there", "memory": {}}, {"host": "here", "memory": None}])
def test_shared_memory_that_some_member_lacks_is_refused(other: dict[str, Any]) -> None:
    one = endpoint("shared")
    with pytest.raises(SettingsError, match="cannot share memory; use gloo"):
        connect(one, [one.address, other])
    one.close()

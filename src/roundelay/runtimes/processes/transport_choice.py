"""How to reach a process in the next generation, and by which transport its members communicate."""

from __future__ import annotations

from collections.abc import Callable

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.runtimes.processes.membership import GenerationAgreement
from roundelay.runtimes.processes.options import ProcessInfo, TransportName
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.gloo_messages import GlooTransport
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator, connect_by_device
from roundelay.runtimes.session import Session
from roundelay.runtimes.strategy_lock import StrategyLock
from roundelay.runtimes.wall_clock import TimeRecorder

__all__ = ["Endpoint"]


class Endpoint:
    """How to reach this process in the next generation: shared memory or gloo; all members choose the same."""

    def __init__(
        self, process: ProcessInfo, transport: TransportName, device: str, lost: Callable[[str], None]
    ) -> None:
        self._host_address, self._transport, self._lost = process.address, transport, lost
        share = transport != "gloo" and device == "cpu" and segments.usable()
        self._memory = SharedMemoryTransport() if share else None
        self.address = {"host": process.host, "memory": self._memory.address if self._memory is not None else None}

    def connect(
        self,
        agreement: GenerationAgreement,
        rank: int,
        strategy_lock: StrategyLock,
        recorder: TimeRecorder,
        store: KeyValueStore,
    ) -> tuple[Session, Communicator]:
        """Connect to all members of a generation."""
        addresses, members = agreement.endpoints, range(len(agreement.endpoints))
        memory = self._memory
        if memory is not None and all(each["memory"] and each["host"] == self.address["host"] for each in addresses):
            memory.connect(rank, [each["memory"] for each in addresses])
            session = Session(memory, strategy_lock, recorder)
            return session, SharedMemoryCommunicator(session, memory, members)
        if self._transport == "shared":
            raise SettingsError(
                "transport: learners on several hosts, or on this machine, cannot share memory; use gloo"
            )
        self.close()
        connect = connect_by_device(store, agreement.generation, self._host_address)
        messages = GlooTransport(rank, len(members), lambda: connect("messages", rank, len(members), "cpu"), self._lost)
        session = Session(messages, strategy_lock, recorder)
        return session, TorchCommunicator(session, members, connect)

    def close(self) -> None:
        """Free the shared memory, if there is any."""
        if self._memory is not None:
            self._memory.close()

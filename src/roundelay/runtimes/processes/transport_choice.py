"""Where a process stands in a run, and by which transport the members of an epoch talk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.runtimes.processes.membership import GenerationAgreement
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.gloo_messages import GlooTransport
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore
from roundelay.runtimes.processes.transport.session import Session, TimeRecorder
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator, connect_by_device
from roundelay.runtimes.strategy_lock import StrategyLock

__all__ = ["Endpoint", "Options", "ProcessInfo"]

Transport = Literal["auto", "gloo", "shared"]


@dataclass(frozen=True)
class Options:
    """Settings of a run on processes."""

    heartbeat_timeout: float = 30.0
    """How long a learner may be silent before the others go on without it."""
    slow: dict[int, float] = field(default_factory=dict)
    """By rank: how many times longer its gradients are to take."""
    max_spans: int = 2000
    """How many spans of time each learner records singly."""
    threads: int = 1
    """Threads that each learner computes with."""
    transport: Transport = "auto"
    """``shared``: memory, on one host only; ``gloo``: sockets; ``auto``: whichever fits the group."""


@dataclass(frozen=True)
class ProcessInfo:
    """Where this process stands in the run."""

    initial_rank: int
    """Our number, which is our rank at the start."""
    size: int
    host: str = "localhost"
    """Processes that give the same name can share memory."""
    address: str = "127.0.0.1"
    """Where others reach us."""
    elastic: bool = False
    """Whether the run outlives a lost learner."""


class Endpoint:
    """How this process can be reached in the next epoch, by memory or by gloo; all members decide alike by which."""

    def __init__(self, place: ProcessInfo, transport: Transport, device: str, lost: Callable[[str], None]) -> None:
        self._host_address, self._transport, self._lost = place.address, transport, lost
        self._memory = (
            SharedMemoryTransport() if transport != "gloo" and device == "cpu" and segments.usable() else None
        )
        self.address = {
            "host": place.host,
            "memory": self._memory.address if self._memory is not None else None,
        }

    def connect(
        self, agreement: GenerationAgreement, rank: int, baton: StrategyLock, diary: TimeRecorder, store: KeyValueStore
    ) -> tuple[Session, Communicator]:
        """Connect to all members of an epoch."""
        cards, everyone = agreement.endpoints, range(len(agreement.endpoints))
        memory = self._memory
        if memory is not None and all(card["memory"] and card["host"] == self.address["host"] for card in cards):
            memory.connect(rank, [card["memory"] for card in cards])
            session = Session(memory, baton, diary)
            return session, SharedMemoryCommunicator(session, memory, everyone)
        if self._transport == "shared":
            raise SettingsError(
                "transport: learners on several hosts, or on this machine, cannot share memory; use gloo"
            )
        if memory is not None:
            memory.close()
        connect = connect_by_device(store, agreement.generation, self._host_address)
        post = GlooTransport(rank, len(cards), lambda: connect("post", rank, len(cards), "cpu"), self._lost)
        session = Session(post, baton, diary)
        return session, TorchCommunicator(session, everyone, connect)

    def close(self) -> None:
        """Withdraw the offer."""
        if self._memory is not None:
            self._memory.close()

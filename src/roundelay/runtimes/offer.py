"""Where a process stands in a run, and by which transport the members of an epoch talk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.runtimes import segments
from roundelay.runtimes.baton import Baton
from roundelay.runtimes.membership import Agreement
from roundelay.runtimes.session import Diary, Session
from roundelay.runtimes.shared_communicator import SharedCommunicator
from roundelay.runtimes.shared_memory import SharedPost
from roundelay.runtimes.store import Store
from roundelay.runtimes.torch_communicator import TorchCommunicator, connect_by_device
from roundelay.runtimes.wires import Wires

__all__ = ["Offer", "Options", "Place"]

Transport = Literal["auto", "gloo", "shared"]


@dataclass(frozen=True)
class Options:
    """Settings of a run on processes."""

    patience_seconds: float = 30.0
    """How long a learner may be silent before the others go on without it."""
    slow: dict[int, float] = field(default_factory=dict)
    """By rank: how many times longer its gradients are to take."""
    spans: int = 2000
    """How many spans of time each learner records singly."""
    threads: int = 1
    """Threads that each learner computes with."""
    transport: Transport = "auto"
    """``shared``: memory, on one host only; ``gloo``: sockets; ``auto``: whichever fits the group."""


@dataclass(frozen=True)
class Place:
    """Where this process stands in the run."""

    learner: int
    """Our number, which is our rank at the start."""
    size: int
    host: str = "localhost"
    """Processes that give the same name can share memory."""
    address: str = "127.0.0.1"
    """Where others reach us."""
    lossy: bool = False
    """Whether the run outlives a lost learner."""


class Offer:
    """How this process can be reached in the next epoch, by memory and by socket; all members decide alike by which."""

    def __init__(self, place: Place, transport: Transport, device: str, lost: Callable[[int], None]) -> None:
        self._address = place.address
        self._wires = Wires(place.address, lost) if transport != "shared" else None
        self._memory = SharedPost() if transport != "gloo" and device == "cpu" and segments.usable() else None
        self.card = {
            "host": place.host,
            "address": self._wires.address if self._wires is not None else None,
            "memory": self._memory.card if self._memory is not None else None,
        }

    def accept(
        self, agreement: Agreement, rank: int, baton: Baton, diary: Diary, store: Store
    ) -> tuple[Session, Communicator]:
        """Connect to all members of an epoch."""
        cards, everyone = agreement.cards, range(len(agreement.cards))
        memory, wires = self._memory, self._wires
        if memory is not None and all(card["memory"] and card["host"] == self.card["host"] for card in cards):
            memory.begin(rank, [card["memory"] for card in cards])
            if wires is not None:
                wires.close()
            session = Session(memory, baton, diary)
            return session, SharedCommunicator(session, memory, everyone)
        if wires is None:
            raise SettingsError(
                "transport: learners on several hosts, or on this machine, cannot share memory; use gloo"
            )
        if memory is not None:
            memory.close()
        token = f"{agreement.epoch} {store.get('began')}".encode()  # of this run and no other
        wires.begin(rank, [tuple(card["address"]) for card in cards], token)
        session = Session(wires, baton, diary)
        return session, TorchCommunicator(session, everyone, connect_by_device(store, agreement.epoch, self._address))

    def close(self) -> None:
        """Withdraw the offer."""
        for post in (self._memory, self._wires):
            if post is not None:
                post.close()

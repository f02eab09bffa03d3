"""Settings of a run on processes, and which process of it this one is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TransportName = Literal["auto", "gloo", "shared"]


@dataclass(frozen=True)
class Options:
    """Settings of a run on processes."""

    heartbeat_timeout: float = 30.0
    """Seconds without a heartbeat until a learner counts as lost."""
    slow: dict[int, float] = field(default_factory=dict)
    """By rank: factor by which its gradients take longer."""
    max_spans: int = 2000
    """How many spans of time each learner records one by one; later ones only add to totals."""
    threads: int = 1
    """Threads that each learner computes with."""
    transport: TransportName = "auto"
    """``shared``: shared memory, on one host only; ``gloo``: sockets; ``auto``: what fits all members."""


@dataclass(frozen=True)
class ProcessInfo:
    """Which process of a run this one is, and how to reach it."""

    initial_rank: int
    size: int
    """Number of processes when the run began."""
    host: str = "localhost"
    """Processes with the same host name can share memory."""
    address: str = "127.0.0.1"
    """Network address of this process."""
    elastic: bool = False
    """Whether the run continues if learners are lost."""

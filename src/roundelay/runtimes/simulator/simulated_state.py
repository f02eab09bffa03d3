"""What a checkpoint holds of a simulated cluster itself: ties, busy links, who serves until when, the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundelay.runtimes.simulator.simulation import Simulation

__all__ = ["capture", "restore"]


def capture(sim: Simulation) -> dict[str, Any]:
    """Return what a checkpoint has to hold of the cluster."""
    return {
        "ties": sim.kernel.capture(),
        "ports": sim.network.capture(),
        "serving": [[seat.free, seat.owes] for seat in sim.seats],
        "record": sim.record.mark(),
    }


def restore(sim: Simulation, state: dict[str, Any]) -> None:
    """Take back what `capture` gave; another number of learners begins with links that are free."""
    sim.kernel.restore(state["ties"])
    if len(state["serving"]) == len(sim.seats):
        sim.network.restore(state["ports"])
        for seat, (free, owes) in zip(sim.seats, state["serving"], strict=True):
            seat.free, seat.owes = free, owes
    sim.record.rewind(state["record"])

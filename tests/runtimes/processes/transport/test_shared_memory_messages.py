"""Messages in shared memory."""

from __future__ import annotations

from roundelay.runtimes.processes.transport.shared_memory_messages import bits_of, weight_of


def test_weights_travel_by_their_bits() -> None:
    for weight in (0.0, 1.0, 1 / 3, 1e-300, -2.5):
        assert weight_of(bits_of(weight)) == weight

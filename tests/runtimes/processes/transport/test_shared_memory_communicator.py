"""Shared memory and gloo give the same verbs; shared memory gives the same bits as the simulator's arithmetic."""

from __future__ import annotations

import pytest

import operation_jobs
from roundelay.errors import Mismatch
from roundelay.runtimes.processes import launcher as launch
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.processes.transport import shared_memory_segments as segments

needs_sharing = pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "size"),
    [("gloo", 1), ("gloo", 2), ("gloo", 3), ("shared", 1), ("shared", 2), ("shared", 3), ("shared", 4)],
)
def test_every_verb(transport: str, size: int) -> None:
    options = Options(transport=transport)  # type: ignore[arg-type]  # one of its literals
    exact = transport == "shared" or size <= 2
    kinds = launch.run(operation_jobs.entry("check_all"), {"exact": exact}, size=size, options=options)
    assert kinds == ["SharedMemoryCommunicator" if transport == "shared" else "TorchCommunicator"] * size


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["gloo", "shared"])
def test_mismatched_collectives_are_named(transport: str) -> None:
    options = Options(transport=transport)  # type: ignore[arg-type]  # one of its literals
    with pytest.raises(Mismatch) as raised:
        launch.run(operation_jobs.entry("mismatch"), {}, size=2, options=options)
    assert "mean((577,) float32)" in str(raised.value)
    assert "mean((1,) float32)" in str(raised.value)
    assert "collective" in str(raised.value)


@pytest.mark.slow
def test_memory_is_used_again() -> None:
    for early, late in launch.run(operation_jobs.entry("reuse"), {}, size=2, options=Options(transport="shared")):
        # One more may be under way at some moment; not to give back the smallest of three kinds would cost 1.6 MB.
        assert late - early < 1_000_000

"""Real processes beside torch's own, and verbs that overtake each other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from peer_jobs import entry

from roundelay.runtimes import launch
from roundelay.runtimes.processes import Options

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bucket_bytes", [0, 256])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_synchronous_equals_ddp(optimizer: str, bucket_bytes: int, tmp_path: Path) -> None:
    settings = {"optimizer": optimizer, "meet": str(tmp_path / "meet"), "bucket_bytes": bucket_bytes}
    assert max(launch.run(entry("beside_ddp"), settings, size=2)) <= 1e-6


@pytest.mark.parametrize("transport", ["shared", "gloo"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_collective_that_overtakes_another_leaves_it_alone(size: int, transport: Literal["shared", "gloo"]) -> None:
    for sizes in ([32, 128], [100, 104]):
        assert launch.run(entry("overlapping"), sizes, size=size, options=Options(transport=transport)) == [[]] * size

"""Every operation on tensors of an accelerator, by its own collectives, with the rules of NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.processes.transport import device_groups

Program = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [2, 3])
def test_every_verb(size: int, stand_in: Program) -> None:
    assert stand_in("verbs", size) == ["TorchCommunicator"] * size


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_share_a_device_go_through_host_memory(stand_in: Program) -> None:
    kinds = stand_in("verbs", 3, STAND_IN_DEVICES="2")
    assert kinds == ["SharedMemoryCommunicator"] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mismatched_collectives_are_named(stand_in: Program) -> None:
    said = stand_in("verbs", 2, "mismatch")
    assert "mean((577,) float32)" in said
    assert "mean((1,) float32)" in said


def test_a_device_without_collectives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_default_backend_for_device", lambda kind: "undefined")
    with pytest.raises(SettingsError, match="no collectives for thing"):
        device_groups.make_device_group("thing", None, 0, 2)


def test_nccl_is_told_to_leave_errors_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Group:
        class Options:
            _timeout = None

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            seen.update(rank=rank, size=size, watch=os.environ.get(device_groups.NCCL_WATCH))

    monkeypatch.setattr("torch.distributed.ProcessGroupNCCL", Group, raising=False)
    monkeypatch.delenv(device_groups.NCCL_WATCH, raising=False)
    device_groups.make_device_group("cuda", None, 1, 2)
    assert seen == {"rank": 1, "size": 2, "watch": "0"}
    assert device_groups.NCCL_WATCH not in os.environ

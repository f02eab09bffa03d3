from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundelay import devices
from roundelay.errors import SettingsError


def test_without_an_accelerator_auto_is_the_cpu() -> None:
    assert devices.choose_device("auto") == devices.choose_device("cpu") == torch.device("cpu")
    assert devices.describe_device("auto", 4) == "cpu"


@pytest.mark.parametrize(
    ("asked", "said"),
    [("cuda", "there is no cuda here; this torch has only cpu"), ("gpu", "unknown 'gpu'"), ("cuda:x", "unknown")],
)
def test_a_device_that_is_not_there_is_named(asked: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        devices.choose_device(asked)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "3"}, 3),
        ({"SLURM_LOCALID": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "2", "MPI_LOCALRANKID": "5"}, 1),
        ({"MPI_LOCALRANKID": "5"}, 5),
    ],
)
def test_the_number_on_this_host(variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in devices.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert devices.local_rank() == expected


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Part:
    x: Tensor
    frames: int = 3


def test_a_minibatch_of_any_kind_is_moved() -> None:
    batch = {"a": [torch.ones(2), "name"], "b": Point(torch.ones(1), 2), "c": (Part(torch.ones(3)),)}
    moved: Any = devices.to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"].x.device.type == moved["c"][0].x.device.type == "meta"
    assert moved["a"][1] == "name"
    assert moved["b"].y == 2
    assert moved["c"][0].frames == 3
    assert devices.to_device(batch, devices.CPU) is batch


def test_where_a_module_is() -> None:
    assert devices.device_of(nn.Identity()) == devices.CPU
    assert devices.device_of(nn.Linear(2, 2, device="meta")).type == "meta"


def test_on_the_cpu_there_is_nothing_to_wait_for() -> None:
    assert devices.mark_stream(devices.CPU) is None
    devices.await_mark(None, devices.CPU)
    devices.use_device(devices.CPU)
    assert devices.identify_device(devices.CPU) == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_accelerator_is_dealt_out(stand_in: Callable[..., Any]) -> None:
    chosen = stand_in("choices", ["auto", "stand_in", "stand_in:3", "cpu", "cuda", "stand_in:9"], LOCAL_RANK="5")
    assert chosen == [
        "stand_in:1",
        "stand_in:1",
        "stand_in:3",
        "cpu",
        "device: there is no cuda here; this torch has stand_in and cpu",
        "device: there is no stand_in:9; this host has stand_in:0 to stand_in:3",
    ]

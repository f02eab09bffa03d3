"""Which device a learner computes on; one code for every accelerator that torch knows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from roundelay.errors import SettingsError

T = TypeVar("T")
CPU = torch.device("cpu")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""Where a process finds its number on its host: torchrun and our own launcher, Slurm, Open MPI, MPICH and Intel MPI."""


def local_rank() -> int:
    """Return our number among the processes of this host, as the launcher says it; 0 without one."""
    said = next((os.environ[name] for name in LOCAL_RANKS if os.environ.get(name, "").isdecimal()), "0")
    return int(said)


def choose_device(asked: str) -> torch.device:
    """Return the device of a setting: ``auto``, ``cpu``, or an accelerator such as ``cuda`` or ``cuda:1``.

    ``auto`` is the accelerator if there is one.  Without a number, the processes of a host are dealt its devices.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if asked == "auto":
        asked = found.type if found is not None else "cpu"
    device = _parse(asked)
    if device.type == "cpu":
        return CPU
    if found is None or found.type != device.type:
        here = f"{found.type} and cpu" if found is not None else "only cpu"
        raise SettingsError(f"device: there is no {device.type} here; this torch has {here}")
    count = torch.accelerator.device_count()
    if ":" not in asked:
        return torch.device(device.type, local_rank() % count)
    if device.index >= count:
        raise SettingsError(f"device: there is no {device}; this host has {device.type}:0 to {device.type}:{count - 1}")
    return device


def _parse(asked: str) -> torch.device:
    try:
        return torch.device(asked)
    except (RuntimeError, ValueError):  # a name that torch does not know
        raise SettingsError(f"device: unknown {asked!r}; use auto, cpu, or an accelerator such as cuda") from None


def describe_device(asked: str, learners: int) -> str:
    """Say in a few words what ``learners`` of this host compute on."""
    device = choose_device(asked)
    if device.type == "cpu":
        return "cpu"
    used = 1 if ":" in asked else min(learners, torch.accelerator.device_count())
    return f"{used} of {torch.accelerator.device_count()} {device.type}" if ":" not in asked else str(device)


def use_device(device: torch.device) -> None:
    """Make ``device`` the current one of this thread: without it a thread works on the first accelerator."""
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


def identify_device(device: torch.device) -> str:
    """Return a name that differs between the devices of a host, also if each process sees only its own."""
    if device.type == "cpu":
        return ""
    module: Any = getattr(torch, device.type, None)  # torch has none for ``meta``
    properties: Any = getattr(module, "get_device_properties", lambda _: None)(device)
    own = getattr(properties, "uuid", None)
    return str(own) if own is not None else f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {device}"


def seed_devices(value: int) -> None:
    """Seed torch's generators: that of the CPU and those of all accelerators."""
    torch.default_generator.manual_seed(value)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None:
        torch.get_device_module(found).manual_seed_all(value)


def device_of(module: nn.Module) -> torch.device:
    """Return where a module's first parameter or buffer is; the CPU if it has none."""
    first = next(module.parameters(), next(module.buffers(), None))
    return first.device if first is not None else CPU


# -- copies -----------------------------------------------------------------------------------------------------------


def to_device(value: T, device: torch.device) -> T:
    """Return a minibatch on ``device``: its tensors in tuples, lists, dicts and dataclasses, at any depth.

    What has a method ``to_device`` decides itself.  Nothing waits for a copy to an accelerator.
    """
    if device.type == "cpu" and not isinstance(value, Tensor):
        return value
    made: Any = value
    own = getattr(value, "to_device", None)
    if isinstance(value, Tensor):
        made = _upload(value, device)
    elif own is not None:
        made = own(device)
    elif isinstance(value, Mapping):
        made = {key: to_device(each, device) for key, each in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        made = type(value)(*(to_device(each, device) for each in value))
    elif isinstance(value, tuple | list):
        made = type(value)(to_device(each, device) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.init]
        made = dataclasses.replace(value, **{name: to_device(getattr(value, name), device) for name in names})
    final: T = made
    return final


def _upload(x: Tensor, device: torch.device) -> Tensor:
    if x.device == device:
        return x
    found = torch.accelerator.current_accelerator()
    if x.device.type != "cpu" or found is None or device.type != found.type:
        return x.to(device)
    return pin(x).to(device, non_blocking=True)


def pin(x: Tensor) -> Tensor:
    """Return a CPU tensor in memory that an accelerator can read by itself."""
    return x if x.is_pinned() else x.pin_memory()


# -- streams ----------------------------------------------------------------------------------------------------------


def mark_stream(device: torch.device) -> torch.Event | None:
    """Mark what this thread's stream has been told to do so far; ``None`` on the CPU, which has done it."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def await_mark(event: torch.Event | None, device: torch.device) -> None:
    """Let this thread's stream wait for what was marked; the thread itself does not wait."""
    if event is not None:
        torch.accelerator.current_stream(device).wait_event(event)

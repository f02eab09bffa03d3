"""Groups of an accelerator's own collective library: NCCL, or whatever is registered with torch.distributed for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from roundelay.errors import SettingsError
from roundelay.runtimes.processes.transport.gloo_messages import FOREVER
from roundelay.runtimes.processes.transport.key_value_store import c10d

NCCL_WATCH = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""What torch does if NCCL fails: by default it ends the process.  Our survivors abort the group and go on."""


def make_device_group(kind: str, store: Any, rank: int, size: int) -> Any:
    """Make a group for tensors on accelerators of this ``kind``, such as ``cuda``."""
    name = dist.get_default_backend_for_device(kind)
    if name == "nccl":  # not run by any test: there is no GPU
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = FOREVER
        with _setting(NCCL_WATCH, "0"):
            return c10d.ProcessGroupNCCL(store, rank, size, options)
    plugin: Any = dist.Backend._plugins.get(name.upper())
    if plugin is not None:
        return plugin.creator_fn(store, rank, size, FOREVER)
    made: Any = getattr(c10d, f"ProcessGroup{name.upper()}", None)  # xccl
    if made is None:
        raise SettingsError(f'device: torch.distributed has no collectives for {kind}; use device = "cpu"')
    return made(store, rank, size)


@contextlib.contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside, for what reads it while it is made."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

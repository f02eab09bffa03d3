"""Registers the stand-in accelerator with torch, as ``stand_in:0`` and so on; `counts` tells what it has done.

torch loads it by itself in every process that finds its entry point (`stand_in_build.environment`), as it does for
accelerators that come as packages.
"""

from __future__ import annotations

import os
import types
from typing import Any

DEVICES = 4


def autoload() -> None:
    """Register the device; torch calls this at the end of its own import."""
    import stand_in_extension as extension
    import torch

    utilities: Any = torch.utils
    utilities.rename_privateuse1_backend("stand_in")
    module: Any = types.ModuleType("torch.stand_in")
    module.is_available, module.device_count = (lambda: True), extension.device_count
    module.current_device, module.set_device = extension.current_device, extension.set_device
    module.is_initialized, module._is_in_bad_fork = (lambda: True), (lambda: False)
    module.synchronize = lambda device=None: extension.synchronize(-1)
    module.seeds = []
    module.manual_seed_all = module.manual_seed = module.seeds.append
    module.get_rng_state, module.set_rng_state = _get_rng_state, _set_rng_state
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("stand_in", module)
    extension.init(int(os.environ.get("STAND_IN_DEVICES", DEVICES)))
    utilities.generate_methods_for_privateuse1_backend()
    if torch.distributed.is_available():
        import stand_in_collectives

        stand_in_collectives.register()


def _get_rng_state(device: Any = None) -> Any:
    import torch

    return torch.default_generator.get_state()


def _set_rng_state(state: Any, device: Any = None) -> None:
    import torch

    torch.default_generator.set_state(state)


def counts() -> dict[str, int]:
    """Return bytes to and from the device, host syncs, operators, and allocations that were asked about."""
    import stand_in_extension as extension

    return dict(extension.counts())


def count_allocations_from(nbytes: int) -> None:
    """Count allocations of so many bytes or more, as ``large``."""
    import stand_in_extension as extension

    extension.count_allocations_from(nbytes)

"""Speed perturbation: copies of utterances played faster and slower."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from roundelay.errors import SettingsError, import_extra

Array = npt.NDArray[np.float32]


def change_speed(samples: Array, factor: float, rate: int) -> Array:
    """Play samples ``factor`` times as fast; pitch rises with speed, as on a tape."""
    if not 0.5 <= factor <= 2.0:
        raise SettingsError(f"speed must be between 0.5 and 2, not {factor:g}")
    if factor == 1.0:
        return samples
    return np.asarray(import_extra("soxr", "speech").resample(samples, rate * factor, rate), np.float32)


def copy_name(name: str, factor: float) -> str:
    """Return the name of the copy of an utterance or speaker: ``sp0.9-NAME``."""
    return name if factor == 1.0 else f"sp{factor:g}-{name}"

"""No model, loss, mask, preconditioner or RBM mixes devices; on the stand-in accelerator, which refuses that.

Fake CUDA tensors would not do: without CUDA, torch refuses to change them in place, and to go backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model_losses import SMALL
from roundelay.models import MODELS


def test_every_model_is_tried() -> None:
    assert {settings["name"] for settings in SMALL.values()} == set(MODELS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gradients_are_the_cpus_to_the_bit(stand_in: Callable[..., Any]) -> None:
    found = stand_in("compare", program="model_losses")
    assert set(SMALL) <= set(found)
    assert {name for name in found if found[name] != "same"} <= {"conformer"}, "its attention is another kernel there"
    assert set(found.values()) <= {"same", "close"}, found

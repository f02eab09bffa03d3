"""Acoustic models of the smallest preset."""

from __future__ import annotations

from typing import Any

import torch

from roundelay.models import build_model


def built(name: str, inputs: int = 24, outputs: int = 7, **settings: Any) -> Any:
    """Build the smallest preset of a model, with weights of one seed."""
    torch.manual_seed(1)
    return build_model({"name": name, "preset": "tiny", **settings}, inputs, outputs)

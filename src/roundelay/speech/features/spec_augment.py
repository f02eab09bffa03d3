"""Masks over time and frequency (SpecAugment), drawn from torch's generator, which is seeded for each minibatch.

Park et al., 2019, "SpecAugment: a simple data augmentation method for automatic speech recognition", without its
warping of time, which they found to matter least.
Legend: B items, T frames, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.config import Natural, Settings
from roundelay.devices import to_device


@dataclass(frozen=True)
class SpecAugment(Settings):
    """Number of masks per item and their maximum widths; a mask's width is drawn from 0 up to the maximum."""

    frequency_masks: Natural = 0
    """Number of masks over bands of the plain features; a mask is the same in all frames of an item."""
    frequency_width: Natural = 6
    """Maximum number of bands of a mask."""
    time_masks: Natural = 0
    """Number of masks over frames, of all features except speaker vectors."""
    time_width: Natural = 4
    """Maximum number of frames of a mask."""


def apply_masks(x: Tensor, settings: SpecAugment, bands: int, num_audio: int) -> Tensor:
    """Return a copy of (B, T, F) masked with 0, the mean of normalised features.

    Frequency masks are over the first ``bands`` features, time masks over the first ``num_audio``.
    """
    rows = _masks(len(x), x.shape[1], settings.time_masks, settings.time_width)
    columns = _masks(len(x), bands, settings.frequency_masks, settings.frequency_width)
    if rows is None and columns is None:
        return x
    x = x.clone()
    if columns is not None:
        x[..., :bands].masked_fill_(to_device(columns, x.device)[:, None, :], 0.0)
    if rows is not None:
        x[..., :num_audio].masked_fill_(to_device(rows, x.device)[:, :, None], 0.0)
    return x


def _masks(items: int, size: int, count: int, width: int) -> Tensor | None:
    """Draw ``count`` masks over ``size`` positions for each item: (B, size), true where masked.

    On the CPU, whose generator gives the same masks whatever the model computes on.
    """
    width = min(width, size)
    if not (count and width):
        return None
    widths = torch.randint(0, width + 1, (items, count, 1))
    begins = torch.floor(torch.rand(items, count, 1) * (size - widths + 1)).long()
    here = torch.arange(size)
    return ((here >= begins) & (here < begins + widths)).any(1)

"""Masks over time and frequency."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.speech.features.spec_augment import SpecAugment, apply_masks

ONES = torch.ones(400, 12, 10)


def masked(seed: int = 0, **settings: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return apply_masks(ONES, SpecAugment(**settings), bands=6, num_audio=8) == 0


def test_frequency_masks_cover_bands_of_all_frames() -> None:
    holes = masked(frequency_masks=1, frequency_width=3)
    assert not holes[..., 6:].any()
    assert (holes == holes[:, :1]).all()
    widths = holes[:, 0].sum(1)
    assert set(widths.tolist()) == {0, 1, 2, 3}
    runs = (holes[:, 0, 1:] != holes[:, 0, :-1]).sum(1)
    assert runs.max() <= 2, "a mask is of neighbours"
    assert holes[:, 0, :6].any(0).all(), "any band may be masked, the first and the last too"


def test_time_masks_leave_the_speakers_vector() -> None:
    holes = masked(time_masks=2, time_width=2)
    assert not holes[..., 8:].any()
    assert (holes[..., :8] == holes[..., :1]).all()
    assert set(holes[..., 0].sum(1).tolist()) == {0, 1, 2, 3, 4}


def test_masks_are_the_generators() -> None:
    settings = {"frequency_masks": 1, "time_masks": 1}
    assert torch.equal(masked(1, **settings), masked(1, **settings))
    assert not torch.equal(masked(1, **settings), masked(2, **settings))


def test_nothing_is_masked_unless_asked_for() -> None:
    state = torch.random.get_rng_state()
    assert apply_masks(ONES, SpecAugment(), 6, 8) is ONES
    assert apply_masks(ONES, SpecAugment(frequency_masks=1), 0, 8) is ONES
    assert torch.equal(torch.random.get_rng_state(), state)
    before = ONES.clone()
    masked(time_masks=3)
    assert torch.equal(ONES, before), "what was read is not changed"


def test_a_mask_wider_than_all_covers_all_at_most() -> None:
    assert masked(time_masks=1, time_width=100)[..., 0].sum(1).max() == 12


def test_fewer_than_none_are_refused() -> None:
    with pytest.raises(SettingsError, match="time_masks must be at least 0, not -1"):
        SpecAugment(time_masks=-1)

"""Attention by distance in a Conformer."""

from __future__ import annotations

import torch
from torch import nn

from roundelay.models.conformer import _rotate
from tiny_models import built


def test_conformer_scores_follow_a_shift_in_time() -> None:
    model = built("conformer").eval()
    query, key = torch.randn(2, 1, 2, 6, 4)
    scores = _rotate(query) @ _rotate(key).mT
    later_query, later_key = (nn.functional.pad(x, (0, 0, 5, 0)) for x in (query, key))
    late = (_rotate(later_query) @ _rotate(later_key).mT)[..., 5:, 5:]
    torch.testing.assert_close(late, scores, rtol=1e-4, atol=1e-5)
    assert model.framewise is False

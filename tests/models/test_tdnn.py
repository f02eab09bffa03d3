"""How far a TDNN sees."""

from __future__ import annotations

import torch

from tiny_models import built


def test_the_context_of_a_tdnn_is_all_that_it_sees() -> None:
    model = built("tdnn").eval()
    x = torch.randn(1, 2 * model.left + 6, 24)
    changed = x.clone()
    changed[:, 0] += 1.0
    assert ((model(x) - model(changed)).abs().amax(2)[0] > 1e-7).tolist() == [True] + [False] * 5

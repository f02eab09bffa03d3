"""How far an LSTM sees ahead."""

from __future__ import annotations

import torch

from tiny_models import built


def test_a_later_frame_reaches_a_unidirectional_lstm_no_further_than_its_delay() -> None:
    model = built("lstm", bidirectional=False, right=3).eval()
    x = torch.randn(1, 13, 24)
    changed = x.clone()
    changed[:, 9] += 1.0
    differ = (model(x) - model(changed)).abs().amax(2)[0] > 1e-7
    assert differ.tolist() == [frame + 3 >= 9 for frame in range(10)]

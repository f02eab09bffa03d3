"""LSTM layers over steps of several frames: which scores belong to which frames."""

from __future__ import annotations

import pytest
import torch

from roundelay.models.recurrent import Recurrent, RecurrentSettings


@pytest.mark.parametrize(("bidirectional", "first"), [(True, 2), (False, 5)])
def test_scores_of_a_unidirectional_model_come_later(bidirectional: bool, first: int) -> None:
    settings = RecurrentSettings(left=2, right=3, cells=4, bidirectional=bidirectional)
    steps = torch.arange(9.0).view(1, 9, 1)
    assert Recurrent(settings, inputs=3).scored(steps, 4, 1).flatten().tolist() == [first + k for k in range(4)]


def test_a_stride_has_one_score_per_so_many_frames() -> None:
    settings = RecurrentSettings(stride=2, fold=2, cells=4)
    steps = torch.arange(6.0).view(1, 3, 2)  # 12 frames, of which 9 are real: 5 scores
    assert Recurrent(settings, inputs=3).scored(steps, 9, 1).flatten().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("linear", [False, True])
def test_padding_does_not_change_real_steps(linear: bool) -> None:
    torch.manual_seed(1)
    recurrent = Recurrent(RecurrentSettings(layers=1, cells=4, fold=2, linear=linear), inputs=3)
    x = torch.randn(2, 8, 3)
    x[1, 4:] = 100.0
    padded = recurrent(x, torch.tensor([8, 4]))
    torch.testing.assert_close(padded[1, :2], recurrent(x[1:, :4])[0])
    assert padded.shape == (2, 4, recurrent.size)

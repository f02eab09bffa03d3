"""Label sequences of CTC by hand."""

from __future__ import annotations

import torch
from torch.nn import functional

from roundelay.tasks.ctc_labels import greedy_labels, label_errors


def test_labels_heard_and_missed() -> None:
    best = torch.tensor([0, 2, 2, 0, 2, 1, 1, 0])
    assert greedy_labels(functional.one_hot(best, 3).float()) == [2, 2, 1]
    assert label_errors([2, 2, 1], [2, 1]) == 1
    assert label_errors([], [1, 2]) == 2
    assert label_errors([1, 2, 3], [3, 2, 1]) == 2

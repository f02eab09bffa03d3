"""Label sequences of CTC: which utterances can be aligned, greedy decoding, and the number of label errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from roundelay.speech.features.network_inputs import CombinedInputs

_log = logging.getLogger(__name__)


def long_enough(inputs: CombinedInputs, labels: Mapping[str, Sequence[int]], stride: int) -> list[str]:
    """List the utterances with enough steps: one per label, and one for the blank between two equal labels."""
    good = []
    for name in inputs.ids:
        steps = -(-int(inputs.lengths[inputs.index(name)]) // stride)
        needed = len(labels[name]) + sum(a == b for a, b in pairwise(labels[name]))
        if steps and steps >= needed:
            good.append(name)
        else:
            _log.warning("%s: left out: %d steps are too few for %d labels", name, steps, needed)
    return good


def greedy_labels(scores: Tensor) -> list[int]:
    """Return the best label of each step (T, S), without repetitions and blanks."""
    best = scores.argmax(-1).tolist()
    return [label for before, label in pairwise([0, *best]) if label and label != before]


def label_errors(hypothesis: Sequence[int], reference: Sequence[int]) -> int:
    """Count the insertions, deletions and substitutions between two sequences."""
    row = list(range(len(reference) + 1))
    for i, one in enumerate(hypothesis, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(reference, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
    return row[-1]

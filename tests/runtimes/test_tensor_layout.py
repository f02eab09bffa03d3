"""Types and shapes as integers, and the bytes of tensors."""

from __future__ import annotations

import pytest
import torch

from roundelay.runtimes.tensor_layout import DTYPES, MAX_DIMENSIONS, Layout, raw_bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (1, 2, 3, 4, 5, 6)])
def test_a_layout_comes_back_and_knows_its_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, dtype=dtype)
    layout = Layout.of(x)
    numbers = layout.encode()
    assert len(numbers) == MAX_DIMENSIONS + 2
    assert Layout.decode(numbers) == layout == (dtype, shape)
    assert layout.nbytes == x.nbytes


def test_more_dimensions_than_fit_become_flat() -> None:
    assert Layout.of(torch.zeros(1, 2, 1, 2, 1, 2, 1)).shape == (8,)


def test_bytes_are_a_view() -> None:
    x = torch.tensor([[1.0, 2.0]])
    data = raw_bytes(x)
    assert (data.dtype, data.numel()) == (torch.uint8, 8)
    data.zero_()
    assert x.tolist() == [[0.0, 0.0]]

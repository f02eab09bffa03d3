"""Arrays in safetensors files with a description."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import product, read_tensors, tensor, write_tensors


def test_arrays_and_their_description_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.safetensors"
    write_tensors(path, {"a": np.arange(6.0).reshape(2, 3).T}, {"kind": "test", "n": 1})
    arrays, description = read_tensors(path, "test")
    assert arrays["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert description == {"kind": "test", "n": 1}


def test_files_of_another_kind_and_no_files_are_errors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"a": np.zeros(1)}, {"kind": "tree"})
    with pytest.raises(DataError, match="contains 'tree', not a model"):
        read_tensors(tmp_path / "x", "model")
    with pytest.raises(DataError, match="no such file; a model was expected here"):
        read_tensors(tmp_path / "y", "model")
    (tmp_path / "z").write_bytes(b"x" * 20)
    with pytest.raises(DataError, match="cannot be read as a model"):
        read_tensors(tmp_path / "z", "model")


def test_read_only_arrays_become_tensors_and_matrices_are_multiplied() -> None:
    frozen = np.arange(4.0).reshape(2, 2)
    frozen.flags.writeable = False
    assert tensor(frozen).tolist() == [[0, 1], [2, 3]]
    assert product(frozen, frozen, np.float64).tolist() == [[2, 3], [6, 11]]

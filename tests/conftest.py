"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


torch.set_num_threads(1)  # as learners have it by default; two threads each would fight for the cores


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Real speech beside the project, where it is there."""
    folder = ROOT.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip("no ../shared/corpora beside the project")
    return folder

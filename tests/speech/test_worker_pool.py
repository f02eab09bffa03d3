"""The pool of processes, as far as it runs in this one."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.speech.worker_pool import WorkerPool


def add(shared: int, chunk: int) -> int:
    return shared + chunk


def test_one_job_runs_here_in_order() -> None:
    with WorkerPool(1) as pool:
        assert list(pool.map(add, 10, range(3))) == [10, 11, 12]


def test_torch_has_one_thread_inside_and_its_own_number_after() -> None:
    before = torch.get_num_threads()
    with WorkerPool(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_no_jobs_are_an_error() -> None:
    with pytest.raises(SettingsError, match="jobs must be at least 1, not 0"):
        WorkerPool(0)

"""The estimate of the Fisher matrix against its definition."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from roundelay.optim.online_fisher import FisherSettings, OnlineFisher


def uneven(rows: int, dim: int, seed: int = 0) -> Tensor:
    """Rows that spread a hundred times further in some directions than in others."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(9)))[0]
    made: Tensor = torch.randn(rows, dim, generator=generator) * torch.logspace(0, -2, dim) @ turn
    return made


def matrix_of(fisher: OnlineFisher) -> Tensor:
    """Return the full matrix F in double precision."""
    r = fisher.directions()
    return (r.T * fisher.d) @ r + fisher.rho * torch.eye(r.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("dim", [2, 5, 40])
@pytest.mark.parametrize("rows", [1, 64])
def test_keeps_the_norm(dim: int, rows: int) -> None:
    fisher = OnlineFisher(FisherSettings(rank=8))
    for seed in range(30):
        x = uneven(rows, dim, seed)
        hat, scale = fisher.precondition(x)
        assert float(torch.linalg.vector_norm(scale * hat)) == pytest.approx(
            float(torch.linalg.vector_norm(x)), rel=1e-5
        )


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_stays_orthonormal(scale: float) -> None:
    fisher = OnlineFisher(FisherSettings(rank=10))
    for seed in range(400):
        fisher.precondition(scale * uneven(32, 30, seed))
        r = fisher.directions()
        assert float((r @ r.T - torch.eye(10)).abs().max()) < 1e-3
    assert float(fisher.d.min()) > 0
    assert fisher.rho > 0


def test_is_the_true_second_moment_at_full_rank_and_without_memory() -> None:
    fisher = OnlineFisher(FisherSettings(rank=19, num_samples_history=1.0, delta=1e-6))
    for seed in range(4):
        fisher.precondition(x := uneven(500, 20, seed))
    moment = (x.T @ x / len(x)).double()
    assert float(torch.linalg.matrix_norm(matrix_of(fisher) - moment) / torch.linalg.matrix_norm(moment)) < 1e-3


def test_averages_over_its_history() -> None:
    fisher = OnlineFisher(FisherSettings(rank=19, num_samples_history=10000.0))
    for seed in range(300):
        fisher.precondition(uneven(200, 20, seed))
    many = uneven(100_000, 20, 1000)
    moment = (many.T @ many / len(many)).double()
    assert float(torch.linalg.matrix_norm(matrix_of(fisher) - moment) / torch.linalg.matrix_norm(moment)) < 0.03


def test_multiplies_by_the_inverse_of_the_smoothed_matrix() -> None:
    fisher = OnlineFisher(FisherSettings(rank=6, alpha=2.0))
    for seed in range(20):
        fisher.precondition(uneven(64, 12, seed))
    before, x = matrix_of(fisher), uneven(64, 12, 99)
    hat, scale = fisher.precondition(x)
    smoothed = before + 2.0 / 12 * before.trace() * torch.eye(12)
    wanted = x.double() @ torch.linalg.inv(smoothed)
    wanted *= torch.linalg.vector_norm(x) / torch.linalg.vector_norm(wanted)
    torch.testing.assert_close((scale * hat).double(), wanted, rtol=1e-3, atol=1e-5)


def test_much_smoothing_is_plain() -> None:
    fisher = OnlineFisher(FisherSettings(rank=6, alpha=1e8))
    for seed in range(20):
        hat, scale = fisher.precondition(x := uneven(64, 12, seed))
        torch.testing.assert_close(scale * hat, x, rtol=1e-4, atol=1e-6)


def test_updates_ten_times_and_then_once_a_period() -> None:
    fisher, updates = OnlineFisher(FisherSettings(rank=2, update_period=4)), []
    for seed in range(22):
        fisher.precondition(uneven(8, 5, seed))
        updates.append(fisher.updates)
    assert updates == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12, 12, 12, 13]


@pytest.mark.parametrize("x", [torch.zeros(4, 5), torch.full((4, 5), torch.nan), torch.ones(4, 1)])
def test_hands_back_what_it_can_do_nothing_with(x: Tensor) -> None:
    fisher = OnlineFisher(FisherSettings())
    hat, scale = fisher.precondition(x)
    assert hat is x
    assert scale == 1.0
    assert not fisher.started


def test_goes_on_from_its_saved_state() -> None:
    one, other = (OnlineFisher(FisherSettings(rank=3, update_period=3)) for _ in range(2))
    assert one.state_dict() == {}
    for seed in range(15):
        one.precondition(uneven(8, 6, seed))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(15, 25):
        ours, theirs = one.precondition(x := uneven(8, 6, seed)), other.precondition(x)
        assert torch.equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]

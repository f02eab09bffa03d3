"""The estimate of the Fisher matrix against its definition."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from kaldi_fisher import KaldiFisher
from roundelay.optim.online_fisher import FisherSettings, OnlineFisher, gram_schmidt_


def uneven(rows: int, dim: int, seed: int = 0, *, decades: float = 2.0) -> Tensor:
    """Rows that spread a hundred times further in some directions than in others; two ``decades`` are a hundred."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(9)))[0]
    made: Tensor = torch.randn(rows, dim, generator=generator) * torch.logspace(0, -decades, dim) @ turn
    return made


def matrix_of(fisher: OnlineFisher) -> Tensor:
    """Return the full matrix F in double precision."""
    r = fisher.directions()
    return (r.T * fisher.d) @ r + fisher.rho * torch.eye(r.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("rows", [6, 7, 64, 9000])  # at most the rank; above it; above the dimension; eta is capped
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 4.0])
def test_is_kaldis(rows: int, period: int, alpha: float) -> None:
    fisher = OnlineFisher(FisherSettings(rank=6, update_period=period, alpha=alpha))
    kaldi = KaldiFisher(rank=6, update_period=period, alpha=alpha)
    for seed in range(30):
        # a hundred times would amplify rounding errors above 1e-9 if there are as many rows as the rank
        x = uneven(rows, 16, seed, decades=1.0).double()
        hat, scale = fisher.precondition(x)
        np.testing.assert_allclose((scale * hat).numpy(), kaldi.precondition(x.numpy()), rtol=0, atol=1e-9)
        np.testing.assert_allclose(matrix_of(fisher).numpy(), kaldi.matrix(), rtol=0, atol=1e-9)


def test_is_kaldis_with_minibatches_of_all_sizes() -> None:
    fisher, kaldi = OnlineFisher(FisherSettings(rank=5)), KaldiFisher(rank=5)
    for seed, rows in enumerate([20, 0, 300, 1, 17, 0, 6000, 2, 40] * 4):
        x = uneven(rows, 11, seed).double() if rows else torch.zeros(50, 11, dtype=torch.float64)
        hat, scale = fisher.precondition(x)
        np.testing.assert_allclose((scale * hat).numpy(), kaldi.precondition(x.numpy()), rtol=0, atol=1e-9)


def test_starts_at_zero_rows_as_kaldi_does() -> None:
    fisher, kaldi = OnlineFisher(FisherSettings(rank=5)), KaldiFisher(rank=5)
    for x in [torch.zeros(50, 11), *(uneven(50, 11, seed) for seed in range(3))]:
        hat, scale = fisher.precondition(x.double())
        np.testing.assert_allclose((scale * hat).numpy(), kaldi.precondition(x.double().numpy()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_survives_large_minibatches_of_zeros(dtype: torch.dtype) -> None:
    fisher = OnlineFisher(FisherSettings(rank=3))
    fisher.precondition(uneven(8, 5).to(dtype))
    for _ in range(20):
        zeros = torch.zeros(100_000, 5, dtype=dtype)
        hat, scale = fisher.precondition(zeros)
        assert torch.equal(hat, zeros)
        assert scale == 1.0
    hat, scale = fisher.precondition(uneven(8, 5, 1).to(dtype))
    assert bool(torch.isfinite(scale * hat).all())


@pytest.mark.parametrize("seed", range(6))
def test_keeps_the_direction_of_the_data_if_cholesky_fails(seed: int) -> None:
    generator, fisher = torch.Generator().manual_seed(seed), OnlineFisher(FisherSettings(rank=4))
    fisher.precondition(torch.randn(40, 9, generator=generator, dtype=torch.float64))
    state = {name: value.clone() for name, value in fisher.state_dict().items()}
    state["w"][2:] = state["w"][:2]  # rows that are equal: their products have no Cholesky factor
    fisher.load_state_dict(state)
    direction = 1000.0 * torch.randn(9, generator=generator, dtype=torch.float64)
    fisher.precondition(torch.randn(40, 1, generator=generator, dtype=torch.float64) * direction)
    r, normal = fisher.directions(), direction / torch.linalg.vector_norm(direction)
    torch.testing.assert_close(torch.linalg.vector_norm(r @ normal), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(r @ r.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-9)


def test_replaces_a_row_of_zeros() -> None:
    rows = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    gram_schmidt_(rows)
    torch.testing.assert_close(rows @ rows.T, torch.eye(2, dtype=torch.float64))
    assert rows[0].tolist() == [0.0, 1.0, 0.0]


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


def test_is_the_true_second_moment_of_a_repeated_minibatch_at_full_rank() -> None:
    fisher, x = OnlineFisher(FisherSettings(rank=19, num_samples_history=1.0, delta=1e-6)), uneven(500, 20)
    for _ in range(4):
        fisher.precondition(x)
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


def test_updates_eleven_times_and_then_once_a_period() -> None:
    fisher, updates = OnlineFisher(FisherSettings(rank=2, update_period=4)), []
    for seed in range(22):
        fisher.precondition(uneven(8, 5, seed))
        updates.append(fisher.updates)
    assert updates == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13]


@pytest.mark.parametrize("x", [torch.full((4, 5), torch.nan), torch.ones(4, 1)])
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

"""The terms that bound AD-PSGD, against the simulation of what they bound."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import find_topology
from roundelay.theory.consensus import noise_gain
from roundelay.theory.convergence import Problem, convergence

RING = Mixing(find_topology("ring"))


def test_by_default_the_rate_is_the_best_for_sgd() -> None:
    terms = convergence(1.0, 16, iterations=10_000)
    assert terms.start == pytest.approx(terms.noise)
    for other in (0.9 * terms.rate, 1.1 * terms.rate):
        worse = convergence(1.0, 16, iterations=10_000, rate=other)
        assert worse.start + worse.noise > terms.start + terms.noise


def test_the_speed_up_is_linear_from_where_the_terms_are_equal() -> None:
    gain = noise_gain(RING, 16)
    start = convergence(gain, 16).speedup_from
    terms = convergence(gain, 16, iterations=round(start))
    assert terms.staleness + terms.network == pytest.approx(terms.start + terms.noise, rel=0.01)
    later = convergence(gain, 16, iterations=round(100 * start))
    half = convergence(gain, 16, iterations=round(400 * start))
    assert half.start + half.noise == pytest.approx((later.start + later.noise) / 2, rel=1e-3)  # 1/sqrt(K)
    assert half.network == pytest.approx(later.network / 4, rel=1e-3)  # 1/K


@pytest.mark.parametrize("topology", ["ring", "complete", "random-ring"])
@pytest.mark.parametrize("staleness", [0, 3])
def test_it_bounds_what_is_seen_on_a_quadratic(topology: str, staleness: int) -> None:
    """Eight learners on f(w) = |w|²/2 with noise 1 per gradient, and a part of it per coordinate."""
    learners, iterations, rate, size = 8, 400, 0.1, 50
    mixing = Mixing(find_topology(topology))
    generator = torch.Generator().manual_seed(0)
    x = torch.full((learners, size), (2 / size) ** 0.5, dtype=torch.float64)  # f is 1 at first
    history, squares = [x], []
    for k in range(iterations):
        squares.append(float(x.mean(0).square().sum()))
        noise = torch.randn(learners, size, generator=generator, dtype=torch.float64) / size**0.5
        stale = history[max(0, k - staleness)]
        x = mixing.matrix(learners, k) @ x - rate * (stale + noise)
        history.append(x)
    bound = convergence(
        noise_gain(mixing, learners), learners, iterations=iterations, staleness=staleness, rate=rate, problem=Problem()
    )
    assert sum(squares) / iterations < bound.total
    assert bound.total < 20 * sum(squares) / iterations  # a bound worth having


def test_what_cannot_be() -> None:
    with pytest.raises(SettingsError, match="iterations must be at least 1 and staleness at least 0, not 0"):
        convergence(1.0, 4, iterations=0)
    with pytest.raises(SettingsError, match="smoothness must be above 0, not -1"):
        Problem(smoothness=-1)

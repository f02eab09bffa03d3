r"""The terms of a bound for the convergence of AD-PSGD: rate, staleness and network.

Lian et al. (2018, arXiv 1710.06952) prove that AD-PSGD converges at SGD's rate $O(1/\sqrt K)$ with a linear speed-up in
the number of learners, if $K$ is large enough for the staleness and the gap.  This is the general shape of that result,
with constants of our own derivation; the theorem's constants differ.

The mean of all weights follows $\bar w_{k+1} = \bar w_k - \gamma \frac{1}{n}\sum_l g_l(\Phi_l)$ under any doubly
stochastic mixing, with $\Phi_l$ the weights of learner $l$'s gradient.  The descent lemma for $\gamma L \le 1$ gives

$\frac{1}{K}\sum_k E\|\nabla f(\bar w_k)\|^2 \le \frac{2 (f_0-f^*)}{\gamma K} + \frac{\gamma L s^2}{n}
+ L^2 \cdot \mathrm{mean}_l E\|\bar w_k - \Phi_l\|^2,$

and the last term is the sum of the mean's change since the snapshot, $\gamma^2 s^2 \tau / n$, and of the learner's
distance from the mean, $\gamma^2 s^2 C$, with $C$ the noise gain of the mixing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from roundelay.errors import SettingsError

ASSUMPTIONS = (
    "this is the general shape, by the descent lemma; constants differ from the theorem: compare rows, do not predict "
    "losses",
    "f has gradients with Lipschitz constant L; learners draw from the same data, with independent gradient noise of "
    "variance s² each",
    "learners take steps equally often; gradients are tau iterations old; an iteration is one step of every learner",
    "mixing is doubly stochastic and in its steady state; gamma L ≤ 1, so that drift adds no term of this order",
)
"""The assumptions, in sentences."""


@dataclass(frozen=True)
class Convergence:
    """Bounds on the mean squared gradient after ``iterations``."""

    rate: float
    """The learning rate, gamma."""
    iterations: int
    start: float
    """The part that remains of the first loss."""
    noise: float
    """Of the gradients, averaged over the learners."""
    staleness: float
    network: float
    speedup_from: float
    """Iterations from which staleness and network are below the rate: from there on the speed-up is linear."""

    @property
    def total(self) -> float:
        """Return the whole bound."""
        return self.start + self.noise + self.staleness + self.network


@dataclass(frozen=True)
class Problem:
    """The loss function, as the bound describes it."""

    distance: float = 1.0
    """From the first loss to the lowest, f0 - f*."""
    smoothness: float = 1.0
    """The Lipschitz constant L of the gradient."""
    noise: float = 1.0
    """The standard deviation s of a learner's gradient."""

    def __post_init__(self) -> None:
        for name in ("distance", "smoothness", "noise"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0, not {getattr(self, name)}")


def convergence(
    gain: float,
    learners: int,
    *,
    iterations: int = 10_000,
    staleness: float = 1.0,
    rate: float | None = None,
    problem: Problem | None = None,
) -> Convergence:
    r"""Return the terms for a mixing of noise gain ``gain``; by default at the rate that is best for SGD.

    This is $\gamma = \sqrt{2 (f_0-f^*) n / (L s^2 K)}$, but at most $1/L$.
    """
    problem = problem or Problem()
    if iterations < 1 or staleness < 0:
        raise SettingsError(f"iterations must be at least 1 and staleness at least 0, not {iterations} and {staleness}")
    fall, lipschitz, variance = problem.distance, problem.smoothness, problem.noise**2
    if rate is None:
        rate = min(math.sqrt(2 * fall * learners / (lipschitz * variance * iterations)), 1 / lipschitz)
    if not 0 < rate * lipschitz <= 1:
        raise SettingsError(f"rate must be above 0 and at most 1/smoothness = {1 / lipschitz:g}, not {rate:g}")
    split = 2.0 if staleness else 1.0  # |a+b|² ≤ 2|a|² + 2|b|², if there are two terms
    scale = split * lipschitz**2 * rate**2 * variance
    apart = split * learners * (gain + staleness / learners)
    return Convergence(
        rate=rate,
        iterations=iterations,
        start=2 * fall / (rate * iterations),
        noise=rate * lipschitz * variance / learners,
        staleness=scale * staleness / learners,
        network=scale * gain,
        speedup_from=fall * lipschitz * learners * apart**2 / (2 * variance),
    )

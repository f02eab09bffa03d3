"""Theory: how fast a topology reaches a consensus, and the terms of a bound for AD-PSGD."""

from __future__ import annotations

from roundelay.theory.consensus import Consensus, consensus, pairwise
from roundelay.theory.convergence import Convergence, convergence

__all__ = ["Consensus", "Convergence", "consensus", "convergence", "pairwise"]

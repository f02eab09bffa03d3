"""Measure the speed of timing-only simulation: python benchmarks/timing_only.py [LEARNERS STEPS [STRATEGY ...]].

By default the nine strategies of the papers on 1 024 learners for 50 steps each (goal: 60 s in all on one core), then
10 000 learners for 20 steps by model averaging (goal: a minute).  The figures are seconds of processor time.
"""

from __future__ import annotations

import sys
import time

from roundelay.planning.ranking import PAPERS
from roundelay.planning.timing import fitted
from roundelay.planning.timing_simulation import time_only
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import find

CLUSTER = Cluster(nodes=256, learners_per_node=4, model_bytes=165e6, compute=Compute(jitter=0.1))


def seconds(name: str, learners: int, steps: int) -> float:
    """Return the processor time of one simulation."""
    strategy = fitted(find(name)(), CLUSTER, learners)
    begin = time.process_time()
    outcome = time_only(strategy, CLUSTER, learners=learners, steps=steps)
    taken = time.process_time() - begin
    print(
        f"{name:15s} {learners:6d} learners {steps:3d} steps {taken:7.2f} s  ({outcome.seconds:.1f} virtual)",
        flush=True,
    )
    return taken


def main() -> None:
    if len(sys.argv) > 2:
        learners, steps = int(sys.argv[1]), int(sys.argv[2])
        print(f"{sum(seconds(name, learners, steps) for name in sys.argv[3:] or PAPERS):.1f} s in all")
        return
    print(f"{sum(seconds(name, 1024, 50) for name in PAPERS):.1f} s in all, goal: 60")
    seconds("averaging", 10_000, 20)
    print("goal: 60")


if __name__ == "__main__":
    main()

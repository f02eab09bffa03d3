"""Kill -9 whole jobs at random moments, resume them, and compare the models' bits with undisturbed runs.

python benchmarks/resume.py [moments] [first seed]

On two processes the lockstep strategies share the moments; in the simulator each strategy has all of them.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from killed_runs import LOCKSTEP, Pace, kill_and_resume, undisturbed
from roundelay.strategies import STRATEGIES
from stopped_simulations import events, job_of, kill_in, run_in
from strategy_cases import CASES, fitting

TWO = ("--learners", "2")


def simulate(moments: int, seed: int) -> int:
    """Kill simulations of every strategy; return how many did not give the same bits."""
    failed = 0
    for strategy in sorted(STRATEGIES):
        learners, same = fitting(CASES[strategy](), 4), 0
        with tempfile.TemporaryDirectory() as name:
            through, begun = Path(name) / "through", time.monotonic()
            through.mkdir()
            expected = run_in(through, job_of(CASES[strategy]()), learners)
            seconds = time.monotonic() - begun
            for number in range(moments):
                rng, killed = random.Random(seed + number), Path(name) / str(number)
                killed.mkdir()
                while not kill_in(killed, CASES[strategy](), learners, rng.uniform(0.0, seconds)):
                    shutil.rmtree(killed)  # it had ended by then: again
                    killed.mkdir()
                again = run_in(killed, job_of(CASES[strategy]()), learners)
                same += torch.equal(again.consensus, expected.consensus) and events(killed) == events(through)
        print(f"| simulator, {learners} learners | {strategy} | {seed} to {seed + moments - 1} | {same} of {moments} |")
        failed += same != moments
    return failed


def run_processes(moments: int, seed: int) -> int:
    """Kill jobs of two processes; return how many did not give the same bits."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        through: dict[str, Pace] = {}
        for number, strategy in zip(range(moments), itertools.cycle(LOCKSTEP), strict=False):
            like, run = Path(name) / strategy, Path(name) / f"{strategy}-{number}"
            if strategy not in through:
                through[strategy] = undisturbed(strategy, like, *TWO)
            killed = kill_and_resume(strategy, run, like, through[strategy], seed + number, *TWO)
            at, same = ", ".join(killed.moments), "yes" if killed.same else "NO"
            print(f"| 2 processes, killed at minibatch {at} | {strategy} | {seed + number} | {same} |", flush=True)
            failed += not killed.same
    return failed


def main() -> int:
    torch.set_num_threads(1)
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print("| where | strategy | seeds | same bits |\n|---|---|---|---|")
    return min(1, simulate(moments, seed) + run_processes(moments, seed))


if __name__ == "__main__":
    sys.exit(main())

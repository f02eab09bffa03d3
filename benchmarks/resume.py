"""Kill -9 whole jobs at random moments, resume them, and compare the models' bits with runs left alone.

python benchmarks/resume.py [moments] [first seed]

Lockstep strategies on two processes share the moments among them; all strategies do so in the simulator.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from killing import LOCKSTEP, kill_and_resume, undisturbed
from roundelay.strategies import STRATEGIES

PLACES = {
    "2 processes": (LOCKSTEP, ("--learners", "2")),
    "simulator, 4 learners": (tuple(sorted(STRATEGIES)), ("--learners", "4", "--on", "simulator")),
}


def main() -> int:
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    failed = 0
    print("| where | strategy | seed | killed at minibatch | same bits |")
    print("|---|---|---|---|---|")
    for where, (strategies, words) in PLACES.items():
        with tempfile.TemporaryDirectory() as name:
            through: dict[str, float] = {}
            for number, strategy in zip(range(moments), itertools.cycle(strategies), strict=False):
                like = Path(name) / strategy
                if strategy not in through:
                    through[strategy] = undisturbed(strategy, like, *words)
                run = Path(name) / f"{strategy}-{number}"
                killed = kill_and_resume(strategy, run, like, through[strategy], seed + number, *words)
                failed += not killed.same
                same = "yes" if killed.same else "NO"
                print(f"| {where} | {strategy} | {seed + number} | {', '.join(killed.moments)} | {same} |", flush=True)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())

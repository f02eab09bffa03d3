"""Kill a learner of a script that ``roundelay launch`` has started, at random moments, and see what becomes of it.

    python benchmarks/launch_kills.py --kills 30
    python benchmarks/launch_kills.py --kills 5 --strategies synchronous bmuf

Each run: 4 learners, a small model, steps of 8 ms of sleep, two epochs of 160 minibatches, kill -9 of a random learner
at a random moment of the first one; servers live in the first learner's process.  A line for each strategy: how many
runs finished, minibatches that nobody finished, the longest time between two finished steps of one survivor in the
second after the kill (the stall; it includes one step), the same before the kill and later (when the learner is let in
again), and after how long the learner's first step came again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import roundelay

SCRIPT = """
import json, os, sys, time
import torch, roundelay
from roundelay.strategies import STRATEGIES
strategy, total, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
me = os.environ["ROUNDELAY_LEARNER"]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
learner = roundelay.join(model, optimizer, STRATEGIES[strategy]())
numbers = torch.arange(float(total)).unsqueeze(1)
with open(f"steps-{me}.jsonl", "a", buffering=1) as steps:
    steps.write(json.dumps([os.getpid(), -1, -1, time.time()]) + "\\n")
    for epoch in learner.epochs(epochs):
        for x in learner.share(torch.utils.data.DataLoader(numbers)):
            optimizer.zero_grad()
            (model(x.expand(1, 16) / total) - 1).square().mean().backward()
            time.sleep(0.008)
            optimizer.step()
            steps.write(json.dumps([os.getpid(), epoch, int(x), time.time()]) + "\\n")
learner.close()
"""
LEARNERS, MINIBATCHES, EPOCHS = 4, 160, 2
STRATEGIES = ("synchronous", "bmuf", "delay-by-one", "adpsgd", "easgd", "asgd")


def steps_of(folder: Path) -> dict[int, list[tuple[int, int, int, float]]]:
    """Return the steps of each learner: process, epoch, minibatch and time."""
    found = {}
    for learner in range(LEARNERS):
        path = folder / f"steps-{learner}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found[learner] = [tuple(json.loads(line)) for line in lines if line.endswith("]")]
    return found


def kill_one(folder: Path, victim: int, after_steps: int, killed: list[float]) -> None:
    """Kill a learner as soon as it has taken so many steps."""
    while True:
        steps = steps_of(folder)[victim]
        if len(steps) > after_steps:
            break
        time.sleep(0.001)
    time.sleep(random.uniform(0.0, 0.012))  # anywhere in a step
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(steps[0][0]), signal.SIGKILL)
        killed.append(time.time())


def longest_gap(times: list[float]) -> float:
    """Return the longest time between two neighbours."""
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def one_run(strategy: str, seed: int) -> dict[str, Any]:
    """Launch, kill, and measure."""
    random.seed(seed)
    servers = strategy in ("asgd", "easgd")
    victim = random.randrange(1 if servers else 0, LEARNERS)
    killed: list[float] = []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        steps_before = random.randrange(2, MINIBATCHES // LEARNERS - 10)
        killer = threading.Thread(target=kill_one, args=(folder, victim, steps_before, killed), daemon=True)
        killer.start()
        words = [strategy, str(MINIBATCHES), str(EPOCHS)]
        try:
            run = roundelay.launch("script.py", words, learners=LEARNERS, logs=folder / "logs")
        except roundelay.RoundelayError as error:
            return {"victim": victim, "failed": str(error)}
        steps = steps_of(folder)
    at = killed[0]
    survivors = [[time for _, epoch, _, time in steps[n] if epoch >= 0] for n in range(LEARNERS) if n != victim]
    again = [time for _, epoch, _, time in steps[victim] if epoch >= 0 and time > at]
    trained = [{number for each in steps.values() for _, e, number, _ in each if e == epoch} for epoch in range(EPOCHS)]
    return {
        "victim": victim,
        "losses": len(run.losses),
        "missing": sum(MINIBATCHES - len(numbers) for numbers in trained),
        "stall": max(longest_gap([t for t in times if t > at - 0.05 and t < at + 1.0]) for times in survivors),
        "later": max(longest_gap([t for t in times if t > at + 1.0]) for times in survivors),
        "before": max(longest_gap([t for t in times if t < at]) for times in survivors),
        "back": min(again) - at if again else None,
    }


def show(strategy: str, results: list[dict[str, Any]]) -> None:
    """Print one line of the table."""
    good = [each for each in results if "failed" not in each]
    times = {
        name: sorted(1000 * each[name] for each in good if each[name] is not None)
        for name in ("stall", "before", "later", "back")
    }
    cells = [f"{statistics.median(each):.0f} ({each[-1]:.0f})" if each else "-" for each in times.values()]
    missing = sum(each["missing"] for each in good)
    print(f"| {strategy} | {len(good)} of {len(results)} | {missing} | " + " | ".join(cells) + " |", flush=True)
    for each in results:
        if "failed" in each:
            print(f"  {each}", flush=True)


def main() -> None:
    """Run all strategies, one kill of each in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kills of each strategy")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    given = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in given.strategies}
    for seed in range(given.kills):
        for strategy, done in results.items():
            done.append(one_run(strategy, seed))
            print(json.dumps({"strategy": strategy, "seed": seed} | done[-1]), file=sys.stderr, flush=True)
    print("| strategy | finished | minibatches missing | stall, ms | gap before, ms | gap later, ms | back after, ms |")
    print("|---|---|---|---|---|---|---|")
    for strategy, done in results.items():
        show(strategy, done)
    everything = [each for done in results.values() for each in done]
    show("all", everything)


if __name__ == "__main__":
    main()

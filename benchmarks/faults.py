"""Kill, stop and isolate learners, thousands of times, and write down what happens.

``make faults`` runs all parts; each can be run alone, continues after a stop, and adds to one file of
results (``build/faults/results.jsonl``).  ``python benchmarks/faults.py table`` makes the tables of
docs/explanation/reliability.md of it; ``python benchmarks/faults.py simulate --strategy bmuf --seed 17`` shows one
simulated schedule again.
"""
# ruff: noqa: E402 (what the tests use, too, lies beside them)

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

import torch
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import fault_runs
import fault_schedules
import fault_tables
from fault_runs import Fault
from roundelay.runtimes.processes.options import Options
from roundelay.strategies import STRATEGIES

RESULTS = ROOT / "build" / "faults" / "results.jsonl"
MINIBATCHES, REJOIN_MINIBATCHES = 160, 480  # the latter is long enough to start a learner again
TASK = {"pause_seconds": 0.008, "rate": 0.05, "momentum": 0.5}
PROCESSES = 4
KILLS, SECOND_KILLS, SILENCES, UNDISTURBED, SCHEDULES = 30, 10, 5, 3, 1000
STOP_SECONDS, STOP_STEP_SECONDS = 20.0, 0.04
SIMULATED_CYCLES, PROCESS_CYCLES = 10_000, 50
Result = dict[str, Any]


# -- parts: each names its runs, and does one -------------------------------------------------------------------------


def settings(strategy: str, *, minibatches: int = MINIBATCHES, step_seconds: float = 0.008) -> dict[str, Any]:
    """Say what learners' processes train."""
    given = fault_schedules.SETTINGS.get(strategy, {}) | ({"rate": 0.3} if strategy == "asgd-updates" else {})
    task = {**TASK, "pause_seconds": step_seconds}
    return {"strategy": strategy, "with": given, "minibatches": minibatches, "task": task}


def role(strategy: str, victim: int) -> str:
    """Say what a rank is in a run on four processes."""
    kind = fault_schedules.make_strategy(strategy)
    if victim < kind.servers:
        return "centre" if strategy == "easgd" else "server"
    return "leader" if strategy == "hierarchical" and victim % 2 == 0 else "learner"


def undisturbed(strategy: str, seed: int) -> Result:
    """Train without a fault, for the loss to compare with."""
    return _on_processes(strategy, [], Options(), rejoins=seed % 2)


def kill(strategy: str, seed: int) -> Result:
    """Kill a random rank at a random moment; in every second run it is restarted."""
    draw = random.Random(f"kill {strategy} {seed}")
    fault = Fault(draw.randrange(PROCESSES), draw.uniform(0.0, 0.45))
    return _on_processes(strategy, [fault], Options(), rejoins=seed % 2)


def second(strategy: str, seed: int) -> Result:
    """Kill another while the survivors of the first kill regroup."""
    draw = random.Random(f"second {strategy} {seed}")
    one, other = draw.sample(range(PROCESSES), 2)
    at = draw.uniform(0.05, 0.4)
    return _on_processes(strategy, [Fault(one, at), Fault(other, at + draw.uniform(0.0, 0.06))], Options())


def silence(strategy: str, seed: int) -> Result:
    """Stop a rank and do not wake it, heartbeat timeout 1 s: no process ends, only the heartbeat is missing."""
    draw = random.Random(f"silence {strategy} {seed}")
    fault = Fault(draw.randrange(PROCESSES), draw.uniform(0.05, 0.4), (signal.SIGSTOP,))
    return _on_processes(strategy, [fault], Options(heartbeat_timeout=1.0))


def stop(strategy: str, seed: int) -> Result:
    """Stop a rank for 20 s: with a heartbeat timeout of 2 s (seed 0), and with one that is longer (seed 1)."""
    patience = 2.0 if seed == 0 else 60.0
    fault = Fault(PROCESSES - 1, 1.0, (signal.SIGSTOP, signal.SIGCONT), pause_seconds=STOP_SECONDS)
    enough = 600 if patience > STOP_SECONDS and len(STRATEGIES[strategy]().lockstep_groups(3)) == 1 else 2600
    given = settings(strategy, minibatches=enough, step_seconds=STOP_STEP_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(heartbeat_timeout=patience)
        outcome = fault_runs.run(given, size=PROCESSES, folder=Path(folder), faults=[fault], options=options)
    meanwhile = {
        learner: sum(fault.at < moment < fault.at + STOP_SECONDS for moment, _ in steps)
        for learner, steps in outcome.steps.items()
        if learner != fault.learner
    }
    back = [event["time"] - fault.at - STOP_SECONDS for event in outcome.joined]
    missing = enough - len(outcome.trained)
    return {
        "patience": patience, "meanwhile": meanwhile, "back": min(back, default=None), "missing": missing,
        "most": max(outcome.trained.values()), "finished": sum(result is not None for result in outcome.results),
        "stall": outcome.stall(fault), "ok": missing == 0,
    }  # fmt: skip


def simulate(strategy: str, seed: int) -> Result:
    """Train through one simulated schedule of faults."""
    told = fault_schedules.check(strategy, seed)
    again = sum(told.counts.values()) - len(told.counts)
    figures = {"fired": told.fired, "joined": told.count("joined"), "again": again, "minibatches": len(told.counts)}
    figures |= {"most": max(told.counts.values()), "lost": len(told.books.lost), "traceless": len(told.traceless)}
    return figures | {"ok": True}


def _on_processes(strategy: str, wanted: list[Fault], options: Options, rejoins: int = 0) -> Result:
    before = set(Path("/dev/shm").iterdir())
    began, enough = time.monotonic(), MINIBATCHES if not rejoins else REJOIN_MINIBATCHES
    with tempfile.TemporaryDirectory() as folder:
        outcome = fault_runs.run(
            settings(strategy, minibatches=enough),
            size=PROCESSES,
            folder=Path(folder),
            faults=wanted,
            options=options,
            restarts=rejoins,
        )
    left = [path.name for path in set(Path("/dev/shm").iterdir()) - before if "roundelay" in path.name]
    missing, most = enough - len(outcome.trained), max(outcome.trained.values())
    finished = [result for result in outcome.results if result is not None]
    result: Result = {
        "missing": missing, "most": most, "loss": finished[0]["loss"], "finished": len(finished),
        "agree": len({each["digest"] for each in finished}) == 1, "left": len(left) + len(fault_runs.learners_left()),
        "seconds": round(time.monotonic() - began, 3),
    }  # fmt: skip
    if wanted:
        joined = min((event["time"] for event in outcome.joined), default=None)
        result |= {
            "victims": [role(strategy, fault.learner) for fault in wanted], "at": wanted[0].at,
            "stall": outcome.stall(wanted[0], until=joined), "before": outcome.longest_before(wanted[0]),
            "load": os.getloadavg()[0],
            "noticed": any(event["event"] == "lost" for event in outcome.events),
            "joined": joined - wanted[0].at if joined is not None else None,
            "pause": outcome.pause(joined, wanted[0]) if joined is not None else None,
        }  # fmt: skip
    lost = len({fault.learner for fault in wanted})
    fine = result["finished"] >= PROCESSES - lost and result["agree"] and not result["left"]
    return result | {"minibatches": enough, "ok": missing == 0 and most <= 1 + max(1, lost) and fine}


def cycles(strategy: str, seed: int) -> Result:
    """Start and stop runs, seed 0 in the simulator and seed 1 on processes, and see that nothing grows."""
    times = SIMULATED_CYCLES if seed == 0 else PROCESS_CYCLES
    marks = []
    for turn in range(times):
        if seed == 0:
            fault_runs.cycle_simulated(turn)
        else:
            fault_runs.cycle_processes()
        if turn in (times // 10 - 1, times - 1):
            marks.append(fault_runs.usage())
    first, last = marks
    grown = {name: last[name] - first[name] for name in first}
    ok = grown["threads"] <= 0 and grown["files"] <= 0 and grown["kilobytes"] < 0.05 * first["kilobytes"] + 2000
    return {"cycles": times, "first": first, "last": last, "ok": ok}


PARTS: dict[str, tuple[Callable[[str, int], Result], int]] = {
    "undisturbed": (undisturbed, UNDISTURBED),
    "kill": (kill, KILLS),
    "second": (second, SECOND_KILLS),
    "silence": (silence, SILENCES),
    "stop": (stop, 2),
    "simulate": (simulate, SCHEDULES),
    "cycles": (cycles, 2),
}
"""By name: what does one run, and how many there are of each strategy."""


# -- running them -----------------------------------------------------------------------------------------------------


def done() -> set[tuple[str, str, int]]:
    """Return what has been run."""
    return {(line["part"], line["strategy"], line["seed"]) for line in read()}


def read() -> list[Result]:
    """Read all results; a line that was being written when a run was ended is left out."""
    lines: list[Result] = []
    for path in sorted(RESULTS.parent.glob("results*.jsonl")):
        for line in path.read_text().splitlines():
            lines += [json.loads(line)] if line.endswith("}") else []
    return lines


def runs(part: str, only: str | None, most: int | None) -> Iterator[tuple[str, str, int]]:
    """Name the runs of a part, strategy after strategy for each seed, so that an early end leaves some of each."""
    count = min(PARTS[part][1], most) if most is not None else PARTS[part][1]
    names = ["adpsgd"] if part == "cycles" else sorted(STRATEGIES)
    for seed in range(count):
        for strategy in names if only is None else [only]:
            yield part, strategy, seed


def one(run: tuple[str, str, int]) -> Result:
    """Do one run; what goes wrong is its result."""
    part, strategy, seed = run
    about = {"part": part, "strategy": strategy, "seed": seed}
    try:
        return about | PARTS[part][0](strategy, seed)
    except Exception as error:
        return about | {"ok": False, "error": f"{type(error).__name__}: {error}"}


def run_part(part: str, only: str | None, most: int | None) -> int:
    """Do all runs of a part that have not been done; return how many went wrong."""
    had, wrong = done(), 0
    left = [run for run in runs(part, only, most) if run not in had]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        RESULTS.with_name(f"results-{part}.jsonl").open("a") as file,
        Progress(*columns) as progress,
        ThreadPoolExecutor(4 if part == "stop" else 1) as pool,  # most of a stop is waiting
    ):
        task = progress.add_task(part, total=len(left))
        for result in pool.map(one, left) if part == "stop" else map(one, left):
            file.write(json.dumps(result) + "\n")
            file.flush()
            progress.advance(task)
            if not result["ok"]:
                wrong += 1
                progress.print(f"{part} {result['strategy']} seed {result['seed']}: {result}")
    return wrong


def main() -> None:
    """Run parts, or make the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} and table; all by default")
    parser.add_argument("--strategy", help="only this one")
    parser.add_argument("--seed", type=int, help="only this run, and show what it gave")
    parser.add_argument("--most", type=int, help="so many runs of each strategy")
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts = given.parts or [*PARTS, "table"]
    unknown = [part for part in parts if part not in (*PARTS, "table")]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}")
    if given.seed is not None:
        sys.stdout.write(json.dumps(one((parts[0], given.strategy or "synchronous", given.seed)), indent=2) + "\n")
        return
    wrong = sum(run_part(part, given.strategy, given.most) for part in parts if part != "table")
    if "table" in parts:
        fault_tables.write(read(), ROOT / "docs" / "explanation" / "reliability.md")
    if wrong:
        sys.exit(f"{wrong} runs went wrong")


if __name__ == "__main__":
    main()

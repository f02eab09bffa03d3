"""What every strategy of the registry has to keep, on every runtime."""

from __future__ import annotations

import ast
import copy
import inspect
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import roundelay.runtimes.simulator.simulated_communicator as simulated_communicator
from quadratic_task import Quadratic, scattered
from roundelay.runtimes.cluster import Cluster, Compute, Fault, NetworkLink
from roundelay.strategies import STRATEGIES, Synchronous
from roundelay.strategy import Strategy
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from strategy_cases import CASES, SETTINGS, Ran, fitting, run_simulated
from tiny_jobs import Watching, adamw, sgd, tiny_job

Runs = Callable[..., Ran]

RUNTIMES: dict[str, Runs] = {"simulator": run_simulated}
"""Other runtimes take part by a function of a job and a number of learners that returns a `Ran`."""

OTHERWISE = {"diloco", "eamsgd", "easgd", "easgd-synchronous", "slowmo"}
"""These pull or filter with one learner too."""

ROUNDED = {"asgd-updates", "bmuf", "bmuf, classical", "nodes by bmuf"}
"""These add differences to what they were taken from, which rounds."""


@pytest.fixture(params=[pytest.param(name, marks=() if name in STRATEGIES else pytest.mark.slow) for name in CASES])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=RUNTIMES)
def run(request: pytest.FixtureRequest) -> Runs:
    return RUNTIMES[request.param]


def uneven(seed: int, learners: int) -> Cluster:
    """Return a cluster of learners of very different speeds, and a network that is fast, slow, or very slow."""
    rng = random.Random(seed)
    compute = Compute(
        seconds=0.1,
        jitter=rng.choice([0.0, 0.0, 0.3, 1.0]),
        slowness=[rng.choice([1.0, 1.0, 1.0, 1.5, 10.0, 0.1]) for _ in range(learners)],
    )
    return Cluster(intra_node=NetworkLink(rng.choice([0.0, 1e-5, 0.03, 0.5]), rng.choice([1e10, 1e4])), compute=compute)


# -- one learner, and several -----------------------------------------------------------------------------------------


def test_one_learner_is_plain_sgd(case: str, run: Runs) -> None:
    if case in OTHERWISE:
        pytest.skip("pulls or filters with one learner too")
    settings: dict[str, Any] = {"optimizer": sgd(0.05), "task": {"dropout": 0.2}}
    mine = run(tiny_job(CASES[case](), **settings), 1).consensus[-1]
    plain = run(tiny_job(Synchronous(), **settings), 1).consensus[-1]
    assert torch.allclose(mine, plain, rtol=0, atol=1e-6 if case in ROUNDED else 0.0)


@pytest.mark.parametrize("learners", [2, 7])
def test_trains_every_minibatch_once_and_agrees_on_the_consensus(case: str, run: Runs, learners: int) -> None:
    strategy = CASES[case]()
    learners = fitting(strategy, learners)
    ran = run(tiny_job(strategy, debug=True), learners)
    assert ran.trained == list(range(60))
    assert len(ran.consensus) == learners + strategy.servers
    assert all(torch.equal(consensus, ran.consensus[0]) for consensus in ran.consensus)


@pytest.mark.slow
def test_learns_with_batch_norm_and_adam(case: str, run: Runs) -> None:
    job = tiny_job(CASES[case](), minibatches=120, task={"batch_norm": True}, optimizer=adamw(0.02), debug=True)
    ran = run(job, 4)
    evaluations = [event["loss"] for event in ran.events if event["event"] == "evaluate"]
    assert evaluations[-1] < 0.8 * evaluations[0]
    # Whatever happened to the running variances, they are still variances.
    places = {place.name: place for place in job.training(_any_runtime(ran)).learner.slots}
    assert float(places["1.running_var"].view(ran.consensus[0]).min()) > 0


def _any_runtime(ran: Ran) -> Any:
    assert ran.outcome is not None
    return ran.outcome.trainings[0].member.runtime


def test_repeats_to_the_bit(case: str) -> None:
    def again() -> Ran:
        return run_simulated(tiny_job(CASES[case]()), 4, uneven(5, 4))

    one, other = again(), again()
    assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))
    assert one.seconds == other.seconds
    assert one.events == other.events


def test_figures_are_recorded(case: str, run: Runs) -> None:
    ran = run(tiny_job(CASES[case]()), 4)
    totals = [event for event in ran.events if event["event"] == "totals"]
    assert all(total["bytes"] > 0 for total in totals)
    assert [event for event in ran.events if event["event"] == "evaluate" and event["distance"] >= 0]
    if len(CASES[case]().lockstep_groups(4)) > 1 and "easgd" not in case and "eamsgd" not in case:
        stale = [event["staleness"] for event in ran.events if event["event"] == "step" and "staleness" in event]
        assert max(stale) > 0


# -- mixing -----------------------------------------------------------------------------------------------------------

CONSERVING = [name for name in CASES if CASES[name]().conserves_mean]


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("seed", range(2))
def test_mixing_at_rate_0_keeps_the_sum_and_shrinks_the_spread(name: str, seed: int) -> None:
    task = Quadratic([0.0] * 240, size=3)
    strategy = scattered(CASES[name](), lambda learner: float(learner.index**2 % 5))
    ran = run_simulated(Job(task, strategy, Budget(240, 240), sgd(0.0)), 6, uneven(seed, 6))
    before = torch.tensor([float(number**2 % 5) for number in range(6)], dtype=torch.float64)
    after = torch.stack(ran.weights)[:, 0]
    assert float(after.sum()) == pytest.approx(float(before.sum()), abs=1e-9)
    assert float(after.std()) < 0.2 * float(before.std())


# -- state ------------------------------------------------------------------------------------------------------------


def kept(strategy: Strategy) -> dict[str, Any]:
    """Return what a checkpoint would hold of a strategy."""
    values = {name: getattr(strategy, name) for name in strategy.state if hasattr(strategy, name)}
    return {
        name: kept(value) if isinstance(value, Strategy) else copy.deepcopy(value) for name, value in values.items()
    }


def restore(strategy: Strategy, values: dict[str, Any]) -> None:
    """Put it back."""
    for name, value in values.items():
        if isinstance(value, dict):
            restore(getattr(strategy, name), value)
        else:
            assert isinstance(value, torch.Tensor | int | float), f"{name} cannot be saved"
            setattr(strategy, name, value)


def test_its_state_is_all_that_it_needs(case: str) -> None:
    def forget(training: Training) -> None:
        """Set everything up anew at a meeting, and put back just what a checkpoint would have."""
        strategy, learner = training.strategy, training.learner
        values, weights = kept(strategy), learner.weights.clone()
        training.strategy.__dict__ = copy.deepcopy(CASES[case]()).__dict__
        learner.comm = training.member.world
        strategy.setup(learner)
        restore(strategy, values)
        assert torch.equal(learner.weights, weights)

    def outcome(at_evaluation: Callable[[Training], None] | None) -> Ran:
        job = tiny_job(CASES[case](), minibatches=40, budget={"evaluate_every": 17}, optimizer=sgd(0.05, 0.9))
        make = job.training

        def training(runtime: Any, *more: Any) -> Training:
            made = make(runtime, *more)
            if at_evaluation is not None:
                made.observers.append(Watching(evaluated=lambda *_: at_evaluation(made)))
            return made

        job.training = training  # type: ignore[assignment, method-assign]  # to be there at meetings
        return run_simulated(job, 4, uneven(3, 4))

    through, stopped = outcome(None), outcome(forget)
    assert through.events == stopped.events
    assert all(torch.equal(a, b) for a, b in zip(through.weights, stopped.weights, strict=True))


@pytest.mark.parametrize("seconds", [0.33, pytest.param(0.61, marks=pytest.mark.slow)])
def test_goes_on_without_a_lost_learner(case: str, seconds: float) -> None:
    ran = run_simulated(tiny_job(CASES[case]()), 4, Cluster(faults=[Fault(learner=2, at_seconds=seconds)]))
    assert set(ran.trained) == set(range(60))
    assert all(torch.equal(consensus, ran.consensus[0]) for consensus in ran.consensus)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_every_request_is_answered_and_every_handle_awaited(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: dict[int, Any] = {}

    class Counted(simulated_communicator._Operation[Any]):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun[id(self)] = self

        def __await__(self) -> Any:
            begun.pop(id(self))
            result = yield from super().__await__()
            return result

    monkeypatch.setattr(simulated_communicator, "_Operation", Counted)
    ran = run_simulated(tiny_job(CASES[case]()), 4, uneven(7, 4))
    assert ran.outcome is not None
    runtime: Any = ran.outcome.trainings[0].member.runtime
    assert [str(event.label) for event in runtime.sim.pending if not event.done] == []
    assert [str(verb.event.label) for verb in begun.values()] == []


PATTERNS = 200
SIZES = [1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 13, 16, 33]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_deadlock_in_many_speed_patterns(case: str) -> None:
    for seed in range(PATTERNS if case in STRATEGIES else PATTERNS // 4):
        rng, strategy = random.Random(seed), CASES[case]()
        learners = fitting(strategy, rng.choice(SIZES))
        minibatches = rng.randint(1, 12)  # often fewer than learners
        task = Quadratic([1.0] * minibatches, tensors=2)
        job = Job(task, strategy, Budget(max(1, minibatches // 2), minibatches), sgd(0.1))
        ran = run_simulated(job, learners, uneven(seed, learners), shuffle=seed if seed % 2 else None)
        assert ran.trained == list(range(minibatches)), f"pattern {seed} with {learners} learners"


# -- the file ---------------------------------------------------------------------------------------------------------

ALLOWED = {
    *("__future__", "collections.abc", "dataclasses", "math", "torch", "typing"),
    *(
        "roundelay.vectors.chunks",
        "roundelay.communicator",
        "roundelay.config",
        "roundelay.errors",
        "roundelay.learner",
        "roundelay.strategy",
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_file_is_an_algorithm_box(name: str) -> None:
    kind = STRATEGIES[name]
    doc = kind.__doc__ or ""
    assert doc.count("$") >= 2, "an equation"
    assert re.search(r"(al\.|[A-Z]\w+), (19|20)\d\d", doc), "a citation"
    source = Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 120
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module in ALLOWED or str(node.module).startswith("roundelay.strategies."), node.module
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= ALLOWED
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 20, f"{node.name} is long"


def test_all_settings_of_cases_are_used() -> None:
    assert set(SETTINGS) <= set(STRATEGIES)
    assert set(CASES) >= OTHERWISE | ROUNDED

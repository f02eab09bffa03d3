"""Resuming equals never having stopped, for every strategy of the registry: weights, clock and record to the bit."""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from pathlib import Path

import pytest
import torch

from roundelay.runtimes.simulator.simulation import SimulationOutcome
from roundelay.strategies import STRATEGIES
from roundelay.training.loop import Training
from stopped_simulations import Stopped, events, job_of, kill_in, run_in
from strategy_cases import CASES, fitting

LEARNERS = 4


@pytest.fixture(params=[pytest.param(name, marks=() if name in STRATEGIES else pytest.mark.slow) for name in CASES])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def folders(tmp_path: Path, *names: str) -> list[Path]:
    made = [tmp_path / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def assert_equal(one: SimulationOutcome[Training], other: SimulationOutcome[Training]) -> None:
    assert torch.equal(one.consensus, other.consensus)
    for a, b in zip(one.trainings, other.trainings, strict=True):
        assert torch.equal(a.learner.weights, b.learner.weights)
        moments = zip(a.learner.moments(), b.learner.moments(), strict=True)
        assert all(torch.equal(x, y) for x, y in moments)
        assert a.scores == b.scores
    assert one.seconds == other.seconds


@pytest.mark.parametrize("shuffle", [None, pytest.param(5, marks=pytest.mark.slow)])
def test_resuming_equals_never_having_stopped(case: str, shuffle: int | None, tmp_path: Path) -> None:
    through, stopped = folders(tmp_path, "through", "stopped")
    learners = fitting(CASES[case](), LEARNERS)
    expected = run_in(through, job_of(CASES[case]()), learners, shuffle=shuffle)
    rng = random.Random(zlib.crc32(case.encode()))
    for stop in (3, rng.randint(4, 25), rng.randint(20, 40)):  # before the first checkpoint, and twice more
        with contextlib.suppress(Stopped):  # where few steps are left
            run_in(stopped, job_of(CASES[case]()), learners, stop=stop, shuffle=shuffle)
    assert_equal(run_in(stopped, job_of(CASES[case]()), learners, shuffle=shuffle), expected)
    assert events(stopped) == events(through)


SEED = random.SystemRandom().randrange(10_000)
"""Another moment each time; a failure tells it."""


def test_a_killed_simulation_resumes_to_the_same_bits(case: str, tmp_path: Path) -> None:
    through, killed = folders(tmp_path, "through", "killed")
    learners, begun = fitting(CASES[case](), LEARNERS), time.monotonic()
    expected = run_in(through, job_of(CASES[case]()), learners)
    seconds = time.monotonic() - begun
    rng = random.Random(SEED)
    for _ in range(2):
        kill_in(killed, CASES[case](), learners, rng.uniform(0.0, seconds))
    again = run_in(killed, job_of(CASES[case]()), learners)
    assert torch.equal(again.consensus, expected.consensus), f"seed {SEED}"
    assert events(killed) == events(through), f"seed {SEED}"


def without_saver(training: Training) -> None:
    assert training.participation.checkpointer is not None
    training.participation.checkpointer.saver = None


def test_saving_changes_nothing(case: str, tmp_path: Path) -> None:
    """The meeting does, where a round is cut short by it; what is done there does not."""
    (folder,) = folders(tmp_path, "run")
    learners = fitting(CASES[case](), LEARNERS)
    saved, plain = job_of(CASES[case]()), job_of(CASES[case]())
    expected = run_in(folder, saved, learners)
    plain.checkpoint, without = saved.checkpoint, tmp_path / "nothing"
    without.mkdir()
    job = job_of(CASES[case]())
    job.budget = plain.budget
    again = run_in(without, job, learners, watch=without_saver)
    assert_equal(again, expected)
    assert not (without / "checkpoints").exists()


def test_lockstep_strategies_are_where_they_would_be_without_checkpoints(case: str, tmp_path: Path) -> None:
    strategy = CASES[case]()
    learners = fitting(strategy, LEARNERS)
    if len(strategy.lockstep_groups(learners)) > 1:
        pytest.skip("a meeting lets learners wait for each other, which they do not do otherwise")
    with_them, without = folders(tmp_path, "with", "without")
    cuts = {"warmup": 0, "evaluate_every": 20}
    one = run_in(with_them, job_of(strategy, budget=cuts | {"checkpoint_every": 2 * learners}), learners)
    other = run_in(without, job_of(strategy, budget=cuts | {"checkpoint_every": None}), learners)
    assert torch.equal(one.consensus, other.consensus)


@pytest.mark.parametrize("learners", [2, 6])
def test_resumes_with_another_number_of_learners(case: str, learners: int, tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, "run")
    before, after = fitting(CASES[case](), LEARNERS), fitting(CASES[case](), learners)
    with contextlib.suppress(Stopped):
        run_in(folder, job_of(CASES[case]()), before, stop=30)
    outcome = run_in(folder, job_of(CASES[case]()), after)
    trained = sorted(event["minibatch"] for event in events(folder) if event["event"] == "step")
    assert trained == list(range(60))
    assert bool(torch.isfinite(outcome.consensus).all())

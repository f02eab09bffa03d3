"""The one loop: evaluation, warm-up, guards, and what happens when somebody is lost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundelay.errors import LearnerLost, Mismatch, NumericalError
from roundelay.learner import Learner
from roundelay.optim.schedules import ExponentialDecay, Newbob
from roundelay.runtimes.cluster import Cluster, Compute, Fault, Straggler
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Task
from roundelay.tasks.tiny import Tiny
from small_strategies import STRATEGIES, Gossip
from tiny_jobs import Watching, adamw, recorded, sgd, simulated, tiny_job, trained


def plain_sgd(make: Any, minibatches: int) -> Tensor:
    """One learner by hand, as anyone would write it in PyTorch."""
    task = tiny_job(Synchronous()).task
    module = task.make_module()
    optimizer = make(module)
    for number in range(minibatches):
        optimizer.zero_grad()
        task.loss(module, task.load(*divmod(number, task.minibatches_per_epoch))).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def flat(vector: Tensor, module: nn.Module) -> Tensor:
    """A consensus without the padding of the vector."""
    learner = Learner(module, None)
    return torch.cat([place.view(vector).reshape(-1) for place in learner.slots])


@pytest.mark.parametrize("make", [sgd(0.05, 0.9), adamw()], ids=["momentum", "adamw"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_one_learner_is_plain_sgd_to_the_bit(strategy: Strategy, make: Any) -> None:
    job = tiny_job(strategy, minibatches=50, optimizer=make)
    outcome = simulated(job, 1)
    assert torch.equal(flat(outcome.consensus, job.task.make_module()), plain_sgd(make, 50))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("learners", [2, 3, 7, 30])
def test_every_minibatch_is_trained_once_and_the_consensus_is_evaluated(strategy: Strategy, learners: int) -> None:
    lines = recorded(strategy, learners, budget={"evaluate_every": 25})
    assert trained(lines) == Counter(range(60))
    looks = [line for line in lines if line["event"] == "evaluate"]
    assert [line["minibatch"] for line in looks] == [25, 50, 60]
    assert all(math.isfinite(line["loss"]) and 0 <= line["error"] <= 1 for line in looks)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_private_shards_end_together(strategy: Strategy) -> None:
    for learners in (3, 4):  # twenty minibatches an epoch on three learners: uneven
        assert trained(recorded(strategy, learners, budget={"shards": learners})) == Counter(range(60))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_training_helps(strategy: Strategy) -> None:
    looks = [line["loss"] for line in recorded(strategy, 4, minibatches=400) if line["event"] == "evaluate"]
    assert looks[-1] < 0.6 * looks[0]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_warm_up_is_synchronous(strategy: Strategy) -> None:
    first = simulated(tiny_job(Synchronous(), minibatches=20), 4)
    warm = simulated(tiny_job(strategy, minibatches=20, budget={"warmup": 20}), 4)
    assert torch.equal(first.consensus, warm.consensus)
    lines = recorded(strategy, 4, budget={"warmup": 20})
    assert trained(lines) == Counter(range(60))


def test_statistics_of_batch_norm_are_averaged_and_right_in_the_consensus() -> None:
    task = {"batch_norm": True}
    for strategy in STRATEGIES:
        outcome = simulated(tiny_job(strategy, minibatches=400, task=task), 4)
        learner = outcome.trainings[-1].learner
        variance = next(place for place in learner.slots if place.name == "1.running_var").view(outcome.consensus)
        assert bool((variance > 0.05).all())
        assert not torch.allclose(variance, torch.ones_like(variance), atol=0.05)
        assert outcome.trainings[-1].scores["loss"] < 0.9  # evaluated with these statistics
    everyone = [training.learner for training in simulated(tiny_job(Synchronous(), task=task), 4).trainings]
    assert all(torch.equal(other.weights, everyone[0].weights) for other in everyone)


def test_schedules_do_not_depend_on_the_number_of_learners() -> None:
    rates: dict[int, list[tuple[int, float]]] = {}
    for learners in (1, 4):
        seen: list[tuple[int, float]] = []
        job = tiny_job(Synchronous(), schedule=lambda: ExponentialDecay(frames=60 * 16, final=0.1))
        make = job.training

        def training(runtime: Any, make: Any = make, seen: Any = seen) -> Any:
            made = make(runtime)
            made.observers.append(Watching(lambda me, _: seen.append((me.minibatch, me.lr_factor))))
            return made

        job.training = training  # type: ignore[method-assign, assignment]  # to look at each step
        simulated(job, learners)
        rates[learners] = sorted(set(seen))
    known = dict(rates[1])
    assert all(known[position] == factor for position, factor in rates[4])
    assert rates[1][-1][1] == pytest.approx(0.1 ** (59 / 60))


def test_newbob_stops_all_learners() -> None:
    job = tiny_job(Gossip(), minibatches=4000, schedule=lambda: Newbob(halve_below=0.5, stop_below=0.4))
    outcome = simulated(job, 4)
    assert all(t.participation.agenda.done for t in outcome.trainings)
    assert outcome.seconds < 100  # the whole budget would have taken 100 s


class Diverging(Task):
    """A task whose loss is not a number at one minibatch."""

    per_epoch, nominal_frames, held_out = 10, 4, 0

    def make_module(self) -> nn.Module:
        return nn.Linear(1, 1)

    def load(self, epoch: int, index: int) -> float:
        return math.nan if (epoch, index) == (2, 3) else 1.0

    def loss(self, module: nn.Module, batch: float) -> Tensor:
        loss: Tensor = module(torch.tensor([batch])).sum()
        return loss

    def describe(self, epoch: int, index: int) -> str:
        return f"utterance {index}"


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where() -> None:
    job = tiny_job(Synchronous(), minibatches=100)
    job.task, job.budget = Diverging(), type(job.budget)(10, 100)
    with pytest.raises(NumericalError, match=r"learner 1: the loss is nan at minibatch 3 of epoch 2 \(utterance 3\)"):
        simulated(job, 2)


@dataclass
class Breaking(Strategy):
    """Loses its weights."""

    async def step(self, learner: Learner) -> None:
        learner.weights[3] = math.inf


def test_weights_that_are_not_finite_stop_the_run() -> None:
    with pytest.raises(NumericalError, match="the consensus after minibatch 2 has non-finite weights"):
        simulated(tiny_job(Breaking(), budget={"evaluate_every": 2}), 2)


@dataclass
class Leaky(Gossip):
    """Forgets to give back what it takes."""

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        return self.share * (learner.weights - theirs)


def test_debug_mode_finds_mixing_that_does_not_conserve_the_mean() -> None:
    simulated(tiny_job(Gossip(), debug=True, budget={"evaluate_every": 10}), 4)
    with pytest.raises(Mismatch, match="Leaky does not conserve the mean"):
        simulated(tiny_job(Leaky(), debug=True, budget={"evaluate_every": 10}), 4)


@dataclass
class Confused(Strategy):
    """Calls another collective on one learner."""

    async def step(self, learner: Learner) -> None:
        if learner.index == 1:
            await learner.comm.mean(torch.zeros(3))
        else:
            await learner.comm.mean(learner.grad)


@dataclass
class Stuck(Strategy):
    """Waits for a message that nobody sends."""

    async def step(self, learner: Learner) -> None:
        if learner.index == 0:
            await learner.comm.exchange(learner.grad, to=1, source=1)


def test_mismatched_collectives_and_deadlocks_are_named() -> None:
    with pytest.raises(
        Mismatch, match=r"learner 0 called mean\(\(\d+,\) float32\), learner 1 called mean\(\(3,\) float32\)"
    ):
        simulated(tiny_job(Confused()), 2)
    with pytest.raises(Exception, match="learner 0 awaits exchange 1 from learner 1"):
        simulated(tiny_job(Stuck()), 2)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_a_lost_learner_costs_no_minibatch(strategy: Strategy) -> None:
    for moment in (0.05, 0.31, 0.5, 0.77):
        cluster = Cluster(faults=[Fault(1, moment)], detection_seconds=0.05)
        lines = recorded(strategy, 4, cluster)
        counts = trained(lines)
        assert set(counts) == set(range(60))
        assert max(counts.values()) <= 2
        assert any(line["event"] == "fault" and line["kind"] == "kill" for line in lines)
        assert {line["member"] for line in lines if line["event"] == "lost"} >= {"learner 0", "learner 2"}


def test_two_losses_one_inside_the_other() -> None:
    for strategy in STRATEGIES:
        cluster = Cluster(faults=[Fault(1, 0.3), Fault(2, 0.34)], detection_seconds=0.05)
        assert set(trained(recorded(strategy, 5, cluster))) == set(range(60))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_losses_one_after_another_repeat_only_what_was_in_hand(strategy: Strategy) -> None:
    long = {"frames_per_epoch": 120 * 16}  # all in one stretch
    cluster = Cluster(faults=[Fault(1, 0.52), Fault(2, 1.13), Fault(3, 1.71)], detection_seconds=0.05)
    counts = trained(recorded(strategy, 6, cluster, minibatches=120, task=long))
    assert set(counts) == set(range(120))
    assert max(counts.values()) <= 2
    assert sum(counts.values()) - 120 <= 3 * 6 * 3  # losses, learners, and what a period of averaging holds


def test_all_lost() -> None:
    with pytest.raises(LearnerLost, match="every learner was lost"):
        simulated(tiny_job(Synchronous()), 2, Cluster(faults=[Fault(0, 0.3), Fault(1, 0.3)]))


def test_a_slow_learner_holds_up_those_who_wait_for_it() -> None:
    slow = Cluster(compute=Compute(seconds=0.1), stragglers=[Straggler(2, 10.0)])
    long = {"frames_per_epoch": 320 * 16}  # one epoch: learners meet at its end only
    seconds = {
        type(s).__name__: simulated(tiny_job(s, minibatches=320, task=long), 8, slow).seconds
        for s in (Synchronous(), Gossip())
    }
    assert seconds["Synchronous"] == pytest.approx(40.0, rel=0.02)
    assert seconds["Gossip"] < 6.0  # 320 minibatches at 71 a second are 4.5 s; at the end all wait for the slow one


def test_overlapped_buckets_give_the_same_weights_sooner() -> None:
    cluster = Cluster(nodes=4, learners_per_node=1, model_bytes=1e8, compute=Compute(seconds=0.2))
    whole = simulated(tiny_job(Synchronous()), 4, cluster)
    parts = simulated(tiny_job(Synchronous(bucket_bytes=100)), 4, cluster)
    assert torch.equal(whole.consensus, parts.consensus)
    assert parts.seconds < 0.9 * whole.seconds


def test_bfloat16_computes_in_it_and_keeps_float32_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    loss = Tiny.loss

    def watched(self: Tiny, module: nn.Module, batch: Any) -> Tensor:
        seen.add(module(batch[0]).dtype)
        return loss(self, module, batch)

    monkeypatch.setattr(Tiny, "loss", watched)

    def run(precision: Any) -> Tensor:
        outcome = simulated(tiny_job(Synchronous(), precision=precision, minibatches=120), 2)
        assert outcome.trainings[0].scores["loss"] < 1.2
        return outcome.consensus

    wide, narrow = run("float32"), run("bfloat16")
    assert seen == {torch.float32, torch.bfloat16}
    assert narrow.dtype == torch.float32
    assert not torch.equal(wide, narrow)
    torch.testing.assert_close(wide, narrow, rtol=0.1, atol=0.1)

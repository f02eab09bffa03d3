"""Gradient compression: what is sent, what is held back, how many bytes it takes, and what it does to training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.simulator.simulation import SimulationOutcome
from roundelay.strategies.compression import COMPRESSIONS, Compression, OneBit, PowerSGD, TopK, pack_bits, unpack_bits
from roundelay.strategies.synchronous import Synchronous
from roundelay.training.loop import Training
from tiny_jobs import sgd, simulated, tiny_job

ALL = [OneBit(), TopK(fraction=0.1), PowerSGD(rank=1)]
LARGER: dict[str, Any] = {"frames_per_epoch": 1600, "hidden": [32, 32], "classes": 12, "features": 20}


class Watched(Synchronous):
    """Keep, for each step, what a learner brought, what all stepped along, and what it held back."""

    def __init__(self, compression: Compression, log: dict[int, list[tuple[float, Tensor, Tensor, Tensor]]]) -> None:
        super().__init__(compression=compression)
        self.log = log

    def __deepcopy__(self, memo: object) -> Watched:
        assert self.compression is not None
        return Watched(self.compression, self.log)

    async def step(self, learner: Learner) -> None:
        grad, descend = learner.grad.clone(), learner.descend
        stepped: list[Tensor] = []

        def watch(grad: Tensor | None = None, part: slice | None = None) -> None:
            assert grad is not None
            stepped.append(grad.clone())
            descend(grad, part)

        learner.descend = watch  # type: ignore[method-assign]  # only for this step
        await super().step(learner)
        learner.descend = descend  # type: ignore[method-assign]  # put back
        self.log.setdefault(learner.comm.rank, []).append((learner.weight, grad, stepped[0], self.residual.clone()))


@pytest.fixture
def double() -> Iterator[None]:
    """Compute in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def watched(
    compression: Compression, learners: int, **settings: Any
) -> tuple[SimulationOutcome[Training], dict[int, Any]]:
    log: dict[int, Any] = {}
    return simulated(tiny_job(Watched(compression, log), **settings), learners), log


@pytest.mark.parametrize("learners", [2, 3, 5])
@pytest.mark.parametrize("compression", ALL)
def test_what_is_sent_and_what_is_held_back_are_the_gradient(compression: Compression, learners: int) -> None:
    # 22 minibatches an epoch of 16 frames, the last of 14: unequal frames, and idle learners at an epoch's end
    outcome, log = watched(compression, learners, minibatches=44, task={"frames_per_epoch": 350, "batch": 16})
    tail = outcome.trainings[0].learner.tail
    before = [torch.zeros(tail) for _ in range(learners)]
    weights_seen = set()
    for turn in zip(*(log[rank] for rank in range(learners)), strict=True):
        weights_seen |= {weight for weight, *_ in turn}
        brought = sum(weight * grad[:tail] + e for (weight, grad, _, _), e in zip(turn, before, strict=True))
        held = sum(residual for *_, residual in turn)
        sent = turn[0][2][:tail] * sum(weight for weight, *_ in turn)
        torch.testing.assert_close(sent + held, brought, rtol=0, atol=2e-6)
        assert all(torch.equal(turn[0][2], other[2]) for other in turn)
        before = [residual for *_, residual in turn]
    assert {1.0, 14 / 16} <= weights_seen
    assert (0.0 in weights_seen) == (44 % learners > 0 or 22 % learners > 0)
    assert all(torch.equal(t.learner.weights, outcome.trainings[0].learner.weights) for t in outcome.trainings)


def test_one_bit_sends_the_means_of_both_sides_of_each_row() -> None:
    learner = Learner(torch.nn.Linear(4, 2, bias=False), None)
    value = torch.tensor([[1.0, 3.0, -2.0, 0.0], [-1.0, -1.0, -4.0, -2.0]])
    flat = torch.zeros(learner.tail)
    flat[:8] = value.reshape(-1)
    message = OneBit().encode(flat, learner.slots)
    assert message.numel() == 2 * 2 * 4 + 1
    decoded = OneBit().add(torch.zeros(learner.tail), message, learner.slots)[:8].view(2, 4)
    expected = torch.tensor([[4 / 3, 4 / 3, -2.0, 4 / 3], [-2.0, -2.0, -2.0, -2.0]])
    torch.testing.assert_close(decoded, expected)
    torch.testing.assert_close(decoded.sum(1), value.sum(1))


def test_two_learners_and_two_steps_of_one_bit_by_hand() -> None:
    """Gradients (3, 1) and (-1, 1), always: the first round sends (2, 2) and (-1, 1), the residual is (1, -1) and 0."""
    grads = [torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 1.0])]
    residuals, sent = [torch.zeros(2), torch.zeros(2)], []
    learner = Learner(torch.nn.Linear(2, 1, bias=False), None)
    for _ in range(2):
        for k in range(2):
            value = torch.zeros(learner.tail)
            value[:2] = grads[k] + residuals[k]
            q = OneBit().add(torch.zeros(learner.tail), OneBit().encode(value, learner.slots), learner.slots)[:2]
            residuals[k] = value[:2] - q
            sent.append(q.tolist())
    assert sent == [[2.0, 2.0], [-1.0, 1.0], [2.0, 2.0], [-1.0, 1.0]]
    assert residuals[0].tolist() == [2.0, -2.0]  # waits until it tips a sign


def test_bits_survive_packing() -> None:
    for count in (1, 7, 8, 9, 1000):
        bits = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
        packed = pack_bits(bits)
        assert packed.dtype == torch.uint8
        assert packed.numel() == -(-count // 8)
        assert torch.equal(unpack_bits(packed, count), bits)


def test_top_k_sends_the_largest() -> None:
    learner = Learner(torch.nn.Linear(5, 2, bias=False), None)
    flat = torch.zeros(learner.tail)
    flat[:10] = torch.tensor([0.0, -9, 1, 2, -3, 4, 5, 8, -7, 6])
    message = TopK(fraction=0.3).encode(flat, learner.slots)
    assert message.numel() == 3 * 8
    decoded = TopK().add(torch.zeros(learner.tail), message, learner.slots)
    assert decoded[:10].tolist() == [0, -9, 0, 0, 0, 0, 0, 8, -7, 0]


def test_powersgd_has_a_matrix_of_low_rank_exactly(double: None) -> None:
    """The gradient of one frame on each of two learners is of rank 2: rank 1 loses some of it, rank 2 nothing."""
    _, log = watched(PowerSGD(rank=1), 2, minibatches=8, task={"hidden": [], "batch": 1})
    assert all(turn[3].norm() > 0.01 for turn in log[0])
    _, log = watched(PowerSGD(rank=2), 2, minibatches=16, task={"hidden": [], "batch": 1, "features": 9, "classes": 9})
    # What rounding loses is held back and comes again, times the condition of the next product: 1e-16 in the first
    # step and 1e-8 in the eighth.  In single precision that growth would end near what rank 1 loses.
    for (w0, g0, stepped, _), (w1, g1, _, _) in zip(log[0], log[1], strict=True):
        torch.testing.assert_close(stepped, (w0 * g0 + w1 * g1) / (w0 + w1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("compression", ALL)
def test_one_learner_sends_nothing_and_takes_plain_steps(compression: Compression) -> None:
    plain = simulated(tiny_job(Synchronous(), minibatches=20), 1)
    compressed = simulated(tiny_job(Synchronous(compression=compression), minibatches=20), 1)
    assert torch.equal(plain.consensus, compressed.consensus)


@pytest.mark.parametrize("learners", [2, 4])
def test_bytes_on_the_wire(learners: int) -> None:
    task = {"hidden": [64], "features": 64, "classes": 64, "frames_per_epoch": 1600}
    rows, numbers, steps = 64 + 1 + 64 + 1, 2 * (64 * 64 + 64), 40 // learners
    everyone = {"one-bit": 8 + 8 * rows + numbers // 8, "top-k": 8 + 8 * round(0.01 * numbers)}
    low_rank = 4 * (1 + 2 * 64 + 4 * 64)  # the weight, both biases, and four factors
    for name, kind in COMPRESSIONS.items():
        compression = PowerSGD(rank=1) if name == "powersgd" else kind()
        job = tiny_job(Synchronous(compression=compression), minibatches=40, task=task)
        plain = tiny_job(Synchronous(), minibatches=40, task=task)
        sent = simulated(job, learners).record.totals["learner 0"]["bytes"]  # type: ignore[union-attr]  # there is a record
        usual = simulated(plain, learners).record.totals["learner 0"]["bytes"]  # type: ignore[union-attr]  # there is a record
        gradients = 2 * (learners - 1) / learners * 4 * numbers * steps
        rest = usual - gradients  # the first broadcast, the meeting
        message = everyone.get(name)
        share = 2 * (learners - 1) / learners * low_rank if message is None else (learners - 1) * message
        assert sent == pytest.approx(share * steps + rest, abs=200)  # scores in JSON vary by some digits
    bits_alone = everyone["one-bit"] - 8 - 8 * rows
    assert bits_alone * 32 == 4 * numbers


@pytest.mark.parametrize("compression", ALL)
def test_buffers_are_averaged_as_they_are(compression: Compression) -> None:
    outcome, log = watched(compression, 3, minibatches=9, task={"batch_norm": True})
    tail = outcome.trainings[0].learner.tail
    for turn in zip(*(log[rank] for rank in range(3)), strict=True):
        total = sum(weight for weight, *_ in turn)
        mean = sum(weight * grad[tail:] for weight, grad, *_ in turn) / total
        torch.testing.assert_close(turn[0][2][tail:], mean, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("compression", [OneBit(), TopK(fraction=0.05), PowerSGD(rank=1)])
def test_feedback_makes_up_for_the_compression(compression: Compression) -> None:
    """Seide et al.: carried forward, the error costs nothing; thrown away, it does."""
    without = type(compression)(**(vars(compression) | {"feedback": False}))
    loss = {
        name: simulated(tiny_job(Synchronous(compression=kind), minibatches=800, task=LARGER, optimizer=sgd(0.1)), 4)
        .trainings[0]
        .scores["loss"]
        for name, kind in (("plain", None), ("with", compression), ("without", without))
    }
    assert loss["with"] < 1.15 * loss["plain"]
    assert loss["without"] > 1.5 * loss["plain"]


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match="compression OneBit needs bucket_bytes = 0, not 1000"):
        Synchronous(bucket_bytes=1000, compression=OneBit()).check(4)
    with pytest.raises(SettingsError, match=r"fraction must be above 0 and at most 1, not 0"):
        Synchronous(compression=TopK(fraction=0.0)).check(4)
    with pytest.raises(SettingsError, match="rank must be at least 1, not 0"):
        Synchronous(compression=PowerSGD(rank=0)).check(4)
    with pytest.raises(SettingsError, match="bucket_bytes must be at least 0, not -1"):
        Synchronous(bucket_bytes=-1).check(2)


def test_residuals_are_state_that_a_checkpoint_saves() -> None:
    outcome = simulated(tiny_job(Synchronous(compression=PowerSGD(rank=1)), minibatches=20), 2)
    for training in outcome.trainings:
        saved = {name: getattr(training.strategy, name) for name in training.strategy.state}
        assert saved["residual"].numel() == training.learner.tail
        assert saved["residual"].norm() > 0
        assert saved["factors"].numel() == 6 + 8  # the columns of both matrices
    first, second = (t.strategy for t in outcome.trainings)
    assert isinstance(first, Synchronous)
    assert isinstance(second, Synchronous)
    assert torch.equal(first.factors, second.factors)
    assert not torch.equal(first.residual, second.residual)


def test_buckets_overlap_and_change_nothing() -> None:
    plain = simulated(tiny_job(Synchronous(), minibatches=20), 3)
    buckets = simulated(tiny_job(Synchronous(bucket_bytes=64), minibatches=20), 3)
    assert torch.equal(plain.consensus, buckets.consensus)

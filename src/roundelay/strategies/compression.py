"""Gradient compression with error feedback, for synchronous SGD: 1-bit, top-k, PowerSGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from roundelay.config import Seed, Width, check_bounds
from roundelay.learner import Learner, Slot
from roundelay.plugins import Registry


@dataclass(frozen=True, kw_only=True)
class Compression:
    r"""Replace the gradient by a mean that takes fewer bytes, and remember what was left out.

    $v_l = n_l g_l + e_l$, $q_l = Q(v_l)$, $e_l \gets v_l - q_l$, and all learners step along
    $\frac{\sum_l q_l}{\sum_l n_l}$ with $n_l$ the frames of learner $l$ in units of a full minibatch, $Q$ the
    compression, and $e_l$ the residual, private to the learner and 0 at first.

    The residual is in units of $n_l g_l$, so its weight stays the same even if minibatches are unequal; a learner
    without a minibatch sends from its residual.  Buffers are never compressed.
    """

    registry: ClassVar[Registry[Compression]]
    feedback: bool = True
    """Carry the residual to the next step."""

    def check(self) -> None:
        """Raise `SettingsError` if a setting is out of range."""
        check_bounds(self, "strategy.compression.")

    def factors(self, learner: Learner) -> Tensor:
        """Return the other state that is kept between steps, flat; it is equal on all learners."""
        return learner.weights.new_zeros(0)

    async def mean(self, learner: Learner, residual: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Replace ``learner.grad`` by the mean; return the next residual and factors."""
        raise NotImplementedError


class _Gathered(Compression):
    """A compression whose messages cannot be added up: every rank gathers them all and adds in rank order."""

    async def mean(self, learner: Learner, residual: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        slots, comm = parameter_slots(learner), learner.comm
        grad, buffers = learner.grad[: learner.tail], learner.grad[learner.tail :]
        averaging = [comm.mean(buffers, learner.weight)] if buffers.numel() else []
        value = grad.mul(learner.weight).add_(residual)
        weight = torch.tensor([learner.weight], dtype=torch.float64, device=value.device)
        message = torch.cat([weight.view(torch.uint8), self.encode(value, slots)])
        total, frames = torch.zeros_like(value), 0.0
        for other in await comm.gather(message):
            frames += float(other[:8].clone().view(torch.float64))
            self.add(total, other[8:], slots)
        for mean in averaging:
            await mean
        grad[:] = total.div_(frames) if frames else 0.0
        if self.feedback:
            residual = value.sub_(self.add(torch.zeros_like(value), message[8:], slots))
        _log_metrics(learner, message.numel(), residual)
        return residual, factors

    def encode(self, value: Tensor, slots: Sequence[Slot]) -> Tensor:
        """Return ``value`` in bytes, compressed."""
        raise NotImplementedError

    def add(self, total: Tensor, message: Tensor, slots: Sequence[Slot]) -> Tensor:
        """Decode ``message``, add it to ``total``, and return the total."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OneBit(_Gathered):
    r"""A bit per value and two numbers per row: $Q(v)_{ij} = a^+_i$ if $v_{ij} \ge 0$, else $a^-_i$.

    $a^\pm_i$ are the means of the values of row $i$ on that side of 0, so a row keeps its sum.  A row has the weights
    into one unit; a bias is one row.

    Seide, Fu, Droppo, Li & Yu, 2014, "1-bit stochastic gradient descent".  Their rows are columns of the weight
    matrices.  Departure: they add and quantise stripes again on the way; we send whole messages to all.
    """

    def encode(self, value: Tensor, slots: Sequence[Slot]) -> Tensor:
        signs, levels = [], []
        for slot in slots:
            rows = _rows(slot, value)
            above = rows >= 0
            count = above.sum(1)
            up = torch.where(above, rows, 0.0).sum(1)
            down = rows.sum(1) - up
            levels += [up / count.clamp(min=1), down / (rows.shape[1] - count).clamp(min=1)]
            signs.append(above.reshape(-1))
        return torch.cat([torch.cat(levels).view(torch.uint8), pack_bits(torch.cat(signs))])

    def add(self, total: Tensor, message: Tensor, slots: Sequence[Slot]) -> Tensor:
        heights = [len(_rows(slot, total)) for slot in slots]
        split = 2 * sum(heights) * total.element_size()
        levels = list(message[:split].clone().view(total.dtype).split([h for h in heights for _ in "+-"]))
        signs = unpack_bits(message[split:], sum(slot.tensor.numel() for slot in slots))
        begin = 0
        for k, slot in enumerate(slots):
            rows = _rows(slot, total)
            above = signs[begin : begin + rows.numel()].view(rows.shape)
            rows.add_(torch.where(above, levels[2 * k][:, None], levels[2 * k + 1][:, None]))
            begin += rows.numel()
        return total


@dataclass(frozen=True, kw_only=True)
class TopK(_Gathered):
    """The largest values only: $Q(v)_i = v_i$ for the $k$ largest $|v_i|$, else 0.

    $k$ is ``fraction`` of all values of all layers together.  A value takes 8 bytes, half of them for its index.

    Aji & Heafield, 2017 (arXiv 1704.05021); the residual of Stich, Cordonnier & Jaggi, 2018 (arXiv 1809.07599).
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.01

    def encode(self, value: Tensor, slots: Sequence[Slot]) -> Tensor:
        count = max(1, round(self.fraction * sum(slot.tensor.numel() for slot in slots)))
        chosen = value.abs().topk(min(count, value.numel()), sorted=False).indices
        return torch.cat([value[chosen].view(torch.uint8), chosen.to(torch.int32).view(torch.uint8)])

    def add(self, total: Tensor, message: Tensor, slots: Sequence[Slot]) -> Tensor:
        split = message.numel() // (total.element_size() + 4) * total.element_size()
        values = message[:split].clone().view(total.dtype)
        return total.index_add_(0, message[split:].clone().view(torch.int32), values)


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Compression):
    r"""Each matrix as a product of rank $r$, by one step of the power method that starts at the last product.

    $P = \mathrm{mean}_l\, V_l B$, orthogonalised; $B \gets \mathrm{mean}_l\, V_l^\top P$; $\bar V = P B^\top$ for all,
    and $e_l \gets V_l - \bar V$.  Both are ordinary means, so the cost does not grow with the number of learners.
    Vectors, and matrices for which a product is not smaller, are not compressed.

    Vogels, Karimireddy & Jaggi, 2019, "PowerSGD" (arXiv 1905.13727, algorithms 1 and 2).
    """

    rank: Width = 2
    seed: Seed = 0

    def factors(self, learner: Learner) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        size = sum(self.rank * _rows(slot, learner.grad).shape[1] for slot in self._compressed_slots(learner))
        return torch.randn(size, generator=generator).to(learner.weights)

    async def mean(self, learner: Learner, residual: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        value = learner.grad.mul(learner.weight)
        value[: learner.tail] += residual
        matrices = self._compressed_slots(learner)
        rest = [slot for slot in learner.slots if slot not in matrices]
        rows = [_rows(slot, value) for slot in matrices]
        heights, widths = [v.shape[0] for v in rows], [v.shape[1] for v in rows]
        left = _flat([v @ b for v, b in zip(rows, self._matrices_of(factors, widths), strict=True)], value)
        plain = _flat([value.new_tensor([learner.weight]), *(value[slot.part] for slot in rest)], value)
        for mean in [learner.comm.mean(left), learner.comm.mean(plain)]:
            await mean
        bases = [torch.linalg.qr(p).Q for p in self._matrices_of(left, heights)]
        factors = _flat([v.T @ p for v, p in zip(rows, bases, strict=True)], value)
        await learner.comm.mean(factors)
        for slot, base, b in zip(matrices, bases, self._matrices_of(factors, widths), strict=True):
            torch.mm(base, b.T, out=_rows(slot, learner.grad))
        for slot, part in zip(rest, plain[1:].split([slot.tensor.numel() for slot in rest]), strict=True):
            learner.grad[slot.part] = part
        if self.feedback:
            residual = value[: learner.tail] - learner.grad[: learner.tail]
            for slot in rest:
                residual[slot.part] = 0.0
        learner.grad.div_(plain[0]) if plain[0] else learner.grad.zero_()
        _log_metrics(learner, (left.numel() + plain.numel() + factors.numel()) * value.element_size(), residual)
        return residual, factors

    def _matrices_of(self, flat: Tensor, heights: Sequence[int]) -> list[Tensor]:
        """Split ``flat`` into matrices of these heights, with ``rank`` columns each."""
        return [part.view(-1, self.rank) for part in flat.split([self.rank * height for height in heights])]

    def _compressed_slots(self, learner: Learner) -> list[Slot]:
        shapes = [(slot, *_rows(slot, learner.grad).shape) for slot in parameter_slots(learner) if slot.tensor.ndim > 1]
        return [slot for slot, m, n in shapes if self.rank * (m + n) < m * n and self.rank <= min(m, n)]


COMPRESSIONS: dict[str, type[Compression]] = {"one-bit": OneBit, "powersgd": PowerSGD, "top-k": TopK}
"""By the name in an experiment."""


def parameter_slots(learner: Learner) -> list[Slot]:
    """Return the slots of all trained parameters."""
    return [slot for slot in learner.slots if slot.part.start < learner.tail]


def _log_metrics(learner: Learner, sent_bytes: int, residual: Tensor) -> None:
    learner.log("message_bytes", sent_bytes)
    learner.log("residual", float(torch.linalg.vector_norm(residual)))


def _flat(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_zeros(0)


def pack_bits(bits: Tensor) -> Tensor:
    """Return bytes of eight ``bits`` each, the first bit in the lowest."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.numel() % 8)).view(-1, 8)
    return padded.mul_(_powers(bits)).sum(1, dtype=torch.uint8)


def unpack_bits(data: Tensor, count: int) -> Tensor:
    """Return the first ``count`` bits of ``data``."""
    return (data[:, None] & _powers(data)).ne(0).reshape(-1)[:count]


def _powers(like: Tensor) -> Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=like.device)


def _rows(slot: Slot, vector: Tensor) -> Tensor:
    """Return a parameter's part of ``vector`` as a matrix, one row per unit; a vector is one row."""
    view = slot.view(vector)
    return view.reshape(len(view), -1) if view.ndim > 1 else view.reshape(1, -1)

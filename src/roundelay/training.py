"""The one training loop, the same for every strategy on every runtime.

Agree on who is here, average the weights of those who hold the model, `setup`; then, until the cluster's common budget
of minibatches is spent: `overlap`, take the snapshot, compute the gradient, `step`.  At meeting points the consensus is
evaluated.  A minibatch is a transaction: when a learner is lost, `LearnerLost` is raised at an await; the weights go
back to the snapshot, the minibatch is given back, and the survivors assemble anew.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from roundelay.budget import Budget, Claim, Claims, left_over
from roundelay.communicator import Communicator
from roundelay.errors import LearnerLost, Mismatch, NumericalError, SettingsError
from roundelay.learner import Learner
from roundelay.ledger import Ledger
from roundelay.order import Order, watch
from roundelay.runtime import Runtime, View
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Scores, Task, evaluate, seed_minibatch

__all__ = ["Training"]


class Training:
    """One learner's training; `run` is the whole of it, the rest are its steps."""

    def __init__(
        self,
        me: Learner,
        strategy: Strategy,
        runtime: Runtime,
        *,
        task: Task,
        budget: Budget,
        schedule: Schedule | None = None,
        seed: int = 0,
        order: Order | None = None,
    ) -> None:
        self.order = order
        self.me, self.runtime, self.task, self.budget, self.seed = me, runtime, task, budget, seed
        self.schedule = me.schedule = schedule
        self.strategy, self.warming = copy.deepcopy(strategy), Synchronous()
        self.acting: Strategy = self.warming
        self.stretches = budget.stretches()
        self.stretch = 0  # the number of the one we are in
        self._left = [(self.stretches[0].begin, self.stretches[0].end)]  # of it, when this membership began
        self.epoch = -1  # of the membership
        self.holds = False  # whether our weights are the model's, or just what the module began with
        self.scores: Scores = {}
        self.evaluated: Tensor | None = None  # the consensus that the scores are of
        self.loss = math.nan
        self.on_step: Callable[[Training], None] | None = None
        self.on_scores: Callable[[Training], None] | None = None
        self.ledger = Ledger(runtime)
        self.world: Communicator
        self._unfinished = False  # whether a snapshot was taken whose step has not ended
        self._start: float | None = None  # what all weights would sum to without steps; debug mode only

    @property
    def who(self) -> str:
        """Our name in records and messages."""
        return f"{'server' if self.me.serves else 'learner'} {self.me.number}"

    async def run(self) -> Tensor:
        """Train until the budget is spent, whoever is lost meanwhile; return the consensus."""
        while True:
            try:
                await self.assemble()
                while self.stretch < len(self.stretches):
                    await self.train_stretch()
                    await self.meet()
                return await self.finish()
            except LearnerLost as lost:
                self.undo(lost)

    # -- who is here --------------------------------------------------------------------------------------------

    async def assemble(self) -> None:
        """Agree on who is here and what is left, and start from the mean of those who hold the model."""
        me = self.me
        report = {
            "holds": self.holds,
            "epoch": self.epoch,
            "stretch": self.stretch,
            "left": self._left,
            "trained": self.ledger.trained,
        }
        view = await self.runtime.assemble(me, report, self._resolve)
        servers = self.strategy.servers
        if view.size <= servers:
            raise SettingsError(
                f"{view.size} ranks cannot train by {type(self.strategy).__name__}, which takes {servers} for serving"
            )
        if view.epoch == 0:  # later on a strategy has to make do with those who are left
            self.strategy.check(view.size - servers)
        me.serves = view.rank < servers
        me.number = view.rank - (0 if me.serves else servers)
        self.world, self.learners = watch(self.ledger.watch(me.comm), self.order), view.size - servers
        await self._merge(view)  # until it is done, what was left before is what is left
        newcomer, self.holds = not self.holds, True
        self.stretch, self.epoch = view.plan["stretch"], view.epoch
        self.offer(view.plan["left"])
        await self._begin_strategy(view.plan["holders"][0] if view.epoch else None, newcomer=newcomer)
        left = [range(begin, end) for begin, end in self._left]
        self.claim_from(left[0] if len(left) == 1 else list(itertools.chain.from_iterable(left)))

    def _resolve(self, reports: Sequence[dict[str, Any]], safe: Sequence[int]) -> dict[str, Any]:
        """Make the plan that all go by: where the run stands, what is left of that stretch, who holds the model.

        The furthest and, there, the latest to have merged know what was left then; what was trained before is not.
        """
        holders = [rank for rank, report in enumerate(reports) if report["holds"]] or [0]
        latest = max((reports[rank]["stretch"], reports[rank]["epoch"]) for rank in holders)
        same = [report for report in reports if (report["stretch"], report["epoch"]) == latest]
        left = left_over(same[0]["left"], [*(report["trained"] for report in same), safe])
        return {"stretch": latest[0], "left": left, "holders": holders}

    async def _merge(self, view: View) -> None:
        holders = view.plan["holders"]
        if len(holders) == 1:
            await self.world.broadcast(self.me.weights, root=holders[0])
        else:
            await self.world.mean(self.me.weights, weight=float(view.rank in holders))
            await self.me.settle("average", self.world, weight=float(view.rank in holders))
        for constant in self.me.constants:
            await self.world.broadcast(constant.data, root=holders[0])

    async def _begin_strategy(self, veteran: int | None = None, *, newcomer: bool = True) -> None:
        """Set up the strategy of this stretch; after a loss ``veteran`` is a rank that was there before."""
        me, servers = self.me, self.strategy.servers
        warmup = self.stretches[min(self.stretch, len(self.stretches) - 1)].warmup
        self.acting = self.warming if warmup else self.strategy
        me.comm, me.stands_for, self._start = self.world, 1, None
        if servers and warmup:
            me.comm = self.world.split([range(servers), range(servers, self.world.size)])
        me.alias(one=self.world.size == 1 or self.acting.whole)
        if veteran is None or newcomer:
            self.acting.setup(me)
        if veteran is not None:
            for name in self.acting.shared:
                await self.world.broadcast(getattr(self.acting, name), root=veteran)
            self.acting.regroup(me)
        if self.acting.remark and self.world.rank == 0:
            self.runtime.record.write("form", self.who, self.runtime.now(), form=self.acting.remark)
        if self.acting.answers:
            self.runtime.open(me, self.acting if self.order is None else self.order.serving(self.acting))

    def partition(self) -> list[list[int]]:
        """Return the ranks of those who step together, and each server by itself."""
        servers = self.strategy.servers
        together = [[servers + member for member in group] for group in self.acting.pace(self.learners)]
        return [*([server] for server in range(servers)), *together]

    def offer(self, left: list[tuple[int, int]]) -> None:
        """Begin with these minibatches of a stretch, none of them trained."""
        self._left = left
        self.ledger.begin()

    def claim_from(self, left: Sequence[int]) -> None:
        """Hand out these minibatches from now on."""
        groups = self.acting.pace(self.learners)
        if self.me.serves and self.stretch < len(self.stretches):
            self.me.at(self.stretches[self.stretch].end - len(left))
        self.claims = Claims(left, groups, 0 if self.me.serves else self.me.number, self.budget)
        self.group: Communicator | None = None
        if self.claims.counted and self.learners > len(groups):
            self.group = self.world.split(self.partition())

    def undo(self, lost: LearnerLost) -> None:
        """Make it so that the step which could not be finished has not happened."""
        if self._unfinished:
            self.me.weights.copy_(self.me.seen)
            self._unfinished = False
        self.runtime.record.write("lost", self.who, self.runtime.now(), why=str(lost), epoch=self.epoch)

    # -- minibatches --------------------------------------------------------------------------------------------

    async def train_stretch(self) -> None:
        """Train until the minibatches of this stretch are all claimed."""
        while not self.me.serves and (claim := await self.claim()) is not None:
            gradient = self.begin(claim)
            await self.runtime.compute(self.me, gradient)
            if self.order is not None:
                await self.order.mark("g")
            await self.end(claim, gradient.loss)

    async def claim(self) -> Claim | None:
        """Take the next minibatch of the cluster's common budget; ``None``: the stretch is spent."""
        if not self.claims.counted:
            return self.claims.take(self.claims.next_base())
        base, size = 0, len(self.claims.group)
        if self.claims.seat == 0:
            base = await self.runtime.count(f"claimed {self.epoch} {self.stretch}", size)
            if self.order is not None:
                base = await self.order.claimed(base)
        if self.group is not None and size > 1:
            base = int(await self.group.broadcast(torch.tensor([base]), root=0))
        return self.claims.take(base)

    def begin(self, claim: Claim) -> Gradient:
        """Start what overlaps the gradient, and take the snapshot."""
        me = self.me
        me.at(claim.position)
        me.frames = 0 if claim.number is None else self.task.frames(*self.budget.place(claim.number))
        self.acting.overlap(me)
        me.look()
        self._unfinished = True
        return Gradient(self, claim)

    async def end(self, claim: Claim, loss: float) -> None:
        """Let the strategy turn the gradient into the next weights."""
        self.ledger.taken()
        await self.acting.step(self.me)
        self._unfinished = False
        if claim.number is not None:
            self.ledger.finished(claim.number)
            self.loss = loss
            self._write_step(claim.number, loss)
        if self.on_step is not None:
            self.on_step(self)

    def _write_step(self, number: int, loss: float) -> None:
        figures: dict[str, float] = {}
        for name, value in self.me.figures:
            figures[name] = figures.get(name, 0.0) + value
        self.me.figures.clear()
        self.runtime.record.write(
            "step", self.who, self.runtime.now(), minibatch=number, frames=self.me.frames, loss=loss, **figures
        )

    # -- meetings -----------------------------------------------------------------------------------------------

    async def meet(self) -> None:
        """Meet all others at the end of a stretch: evaluate, and go on from our own weights."""
        stretch = self.stretches[self.stretch]
        if not self.me.serves:
            await self.acting.rest(self.me)
        await self.world.mean(torch.zeros(1))  # all have finished: no request is under way
        self.runtime.stand_still(still=True)
        wanted = stretch.evaluate and (self.task.held_out or self.me.debug)
        stop = await self._evaluate(stretch.end) if wanted else False
        self.stretch = len(self.stretches) if stop else self.stretch + 1
        if stretch.warmup and self.strategy.servers:  # which took no part in it
            await self.world.broadcast(self.me.weights, root=self.strategy.servers)
        self.offer([])
        if self.stretch < len(self.stretches):
            now = self.stretches[self.stretch]
            self.offer([(now.begin, now.end)])
            if stretch.warmup and not now.warmup:
                await self._begin_strategy()
            self.claim_from(range(now.begin, now.end))
        await self.world.mean(torch.zeros(1))
        self.runtime.stand_still(still=False)

    async def _evaluate(self, position: int) -> bool:
        """Evaluate the consensus, each learner a share of the held-out minibatches; return whether to stop."""
        me, task = self.me, self.task
        takes_part = not (me.serves and self.acting is self.warming)
        consensus = await self.acting.consensus(me) if takes_part else me.weights
        self._check_finite(consensus, f"the consensus after minibatch {position}")
        shares = range(0) if me.serves else range(me.number, task.held_out, self.learners)
        kept = me.seen.clone()
        mine: dict[str, Any] = {"scores": evaluate(task, me.module, shares, lambda: me.load(consensus))}
        me.load(kept)
        if not me.serves:
            mine["distance"] = float(torch.linalg.vector_norm(me.weights - consensus))
            mine["norm"] = float(torch.linalg.vector_norm(consensus))
        if me.debug:
            mine["sum"], mine["moved"] = float(me.weights.sum(dtype=torch.float64)), me.moved
        everyone = await gather_json(self.world, mine)
        self._check_conserved(everyone)
        sums: Scores = {}
        for scores in (other["scores"] for other in everyone):
            for name, value in scores.items():
                sums[name] = sums.get(name, 0.0) + value
        frames = sums.pop("frames", 0.0)
        self.scores = {name: value / frames for name, value in sums.items()} if frames else {}
        self.scores["distance"] = max(other["distance"] for other in everyone if "distance" in other)
        if self.world.rank == 0:
            self.runtime.record.write(
                "evaluate",
                self.who,
                self.runtime.now(),
                minibatch=position,
                epoch=position / self.budget.per_epoch,
                **self.scores,
            )
        self.evaluated = consensus
        if self.on_scores is not None:
            self.on_scores(self)
        return self.schedule.met(self.scores) if self.schedule is not None else False

    async def finish(self) -> Tensor:
        """Return the consensus, when all have met for the last time."""
        consensus = await self.acting.consensus(self.me)
        await self.world.mean(torch.zeros(1))
        await self.runtime.close(self.me)
        self._check_finite(consensus, "the consensus")
        return consensus

    # -- guards -------------------------------------------------------------------------------------------------

    def _check_finite(self, vector: Tensor, what: str) -> None:
        if not math.isfinite(float(vector.sum())) and not bool(torch.isfinite(vector).all()):
            raise NumericalError(f"{self.who}: {what} has weights that are not finite; a lower learning rate may do")

    def _check_conserved(self, everyone: Sequence[dict[str, Any]]) -> None:
        """See, in debug mode, that mixing has kept the sum of all learners' weights."""
        if not (self.me.debug and self.acting.conserves):
            return
        now = sum(other["sum"] for other in everyone)
        moved = sum(other["moved"] for other in everyone)
        if self._start is not None and abs(now - moved - self._start) > 1e-4 * max(1.0, abs(now)):
            raise Mismatch(
                f"{type(self.acting).__name__} does not conserve the mean: the weights sum to {now:.9g}, "
                f"steps account for {self._start + moved:.9g}"
            )
        self._start = now - moved


class Gradient:
    """The gradient of one minibatch, as runtimes run it."""

    def __init__(self, training: Training, claim: Claim) -> None:
        self.training, self.number, self.loss = training, claim.number, math.nan
        strategy, me = training.acting, training.me
        wanted = strategy.bucket_bytes and training.world.size > 1
        self.parts: Sequence[slice] = me.parts(strategy.bucket_bytes) if wanted else ()

    def ready(self, part: slice) -> None:
        """Tell the strategy that this part of the gradient is final."""
        self.training.acting.ready(self.training.me, part)

    def run(self, ready: Callable[[slice], None] | None) -> None:
        """Take the gradient; an idle learner's is zero."""
        training, me = self.training, self.training.me
        finish = me.announce(self.parts, ready) if ready is not None and self.parts else None
        if self.number is not None:
            epoch, index = training.budget.place(self.number)
            seed_minibatch(training.seed, epoch, index)
            self.loss = training.task.gradient(me, training.task.load(epoch, index))
            if not math.isfinite(self.loss):
                where = training.task.where(epoch, index)
                raise NumericalError(
                    f"{training.who}: the loss is {self.loss} at minibatch {index} of epoch {epoch}"
                    + (f" ({where})" if where else "")
                )
            me.collect()
        if finish is not None:
            finish()


async def gather_json(comm: Communicator, value: Any) -> list[Any]:
    """Return everyone's ``value`` in rank order."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(bytes(other.tolist())) for other in await comm.gather(data)]

"""Going on from a checkpoint: all agree on the newest that is whole, and put back what it holds."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from roundelay.communicator import gather_json
from roundelay.errors import CheckpointError
from roundelay.runtime import Membership
from roundelay.training.checkpoint_files import RankState, choose
from roundelay.training.evaluation import first_cut
from roundelay.training.fingerprint import compare
from roundelay.training.recovery import make_plan
from roundelay.training.snapshot import put_back, put_back_keepers, put_back_strategy, put_back_weights

if TYPE_CHECKING:
    from roundelay.training.loop import Training

__all__ = ["plan_start", "report_start", "resume", "start_over"]

logger = logging.getLogger(__name__)


def report_start(training: Training) -> dict[str, Any]:
    """Say what we run, and, unless we hold the model already, what checkpoints we can answer for."""
    report: dict[str, Any] = {"seat": training.runtime.initial_rank}
    if training.fingerprint is not None:
        report["print"] = training.fingerprint
    if training.saver is not None and not training.holds:
        report["held"] = training.saver.checkpoints.held(training.runtime.initial_rank, training.runtime.initial_size)
    return report


def plan_start(reports: Sequence[dict[str, Any]], safe: Sequence[int]) -> dict[str, Any]:
    """Make the plan that all go by; where nobody holds the model, it may come from a checkpoint.

    A `Mismatch` says in what those who come differ.
    """
    told = [report for report in reports if "print" in report]
    if told:
        compare([report["print"] for report in told], [f"rank {report['seat']}" for report in told])
    plan = make_plan(reports, safe)
    held = [report["held"] for report in reports if "held" in report]
    if held and not any(report["holds"] for report in reports):
        plan["checkpoint"] = choose(held)
        plan["damaged"] = sorted({each for report in held for each in report["damaged"]})
    return plan


def start_over(training: Training) -> None:
    """Begin at the beginning, and forget what a run that never came to a whole checkpoint has left."""
    first_cut(training, 0)
    training.learner.rollback_lr_factor = training.lower
    if training.saver is None:
        return
    if training.runtime.clock == "wall" or training.world.rank == 0:  # a simulated cluster has one record
        training.runtime.record.restart()
    if training.world.rank == 0:
        training.saver.checkpoints.clean(None)


async def resume(training: Training, view: Membership) -> None:
    """Put back what the checkpoint of the plan holds, and go on as if nothing had happened since."""
    saver, world, runtime = training.saver, training.world, training.runtime
    assert saver is not None
    plan: dict[str, int] = view.plan["checkpoint"]
    position, size = plan["position"], plan["size"]
    runtime.pause_clock(paused=True)
    parts = [saver.checkpoints.read(position, part) for part in range(view.rank, size, view.size)]
    for part in parts:
        _check(training, part)
    if parts:  # before anybody waits: virtual time does not pass meanwhile
        runtime.restore({"now": parts[0].state["runtime"]["now"]})
    saver.attempt = plan["attempt"] + 1
    unsafe = parts[0].state.get("unsafe", []) if parts and size == view.size else []  # of a mean all is everyone's
    everyone = await gather_json(world, {"unsafe": unsafe, **(_common(parts[0]) if view.rank == 0 else {})})
    told = everyone[0]
    restore = getattr(training.schedule, "restore", None)
    if restore is not None:
        restore(told["schedule"])
    training.learner.rollback_lr_factor = told["cut"] * training.lower
    await (_same(training, view, parts[0], told) if size == view.size else _resized(training, view, parts, told))
    training.ledger.trained[:] = unsafe
    training.offer_next(sorted(number for each in everyone for number in each["unsafe"]))
    saver.checkpoints.remove([other for other in saver.checkpoints.positions() if other > position], view.rank)
    if view.rank == 0:
        saver.checkpoints.clean(position)
    await world.mean(torch.zeros(1))  # from here to the next line that awaits, as in a meeting
    if size == view.size:
        put_back(training, parts[0])
    else:
        for part in reversed(parts):  # each may have written a record of its own
            runtime.restore(part.state["runtime"])
        runtime.restore({"now": told["now"]})
        training.scores, training.loss = told["scores"], told["loss"]
        if parts:
            put_back_keepers(training.learner, parts[0])
    training.began = training.saved = runtime.now()
    if view.rank == 0:
        for line in view.plan["damaged"]:
            logger.warning("%s; going on from the checkpoint before it, at minibatch %d", line, position)
            runtime.record.write("damaged", training.member, runtime.now(), reason=line)
        runtime.record.write(
            "resumed",
            training.member,
            runtime.now(),
            minibatch=position,
            size=view.size,
            source=size,
            rate=training.learner.rollback_lr_factor,
        )
    await world.mean(torch.zeros(1))
    runtime.pause_clock(paused=False)


def _check(training: Training, part: RankState) -> None:
    """See that a checkpoint is of this model and this strategy; a loop of the user's own may have changed meanwhile."""
    assert training.saver is not None
    where, strategy = training.saver.checkpoints.place(part.position), type(training.strategy).__name__
    theirs, ours = part.state["shapes"], training.learner.shapes
    for their, our in itertools.zip_longest(theirs, ours, fillvalue=["nothing", []]):
        if their != our:
            found = f"{their[0]} {their[1]}, here {our[0]} {our[1]}"
            raise CheckpointError(f"{where}: of another model: {found}; name another folder")
    if part.state["strategy_name"] != strategy:
        made = part.state["strategy_name"]
        raise CheckpointError(f"{where}: made by {made}, not {strategy}; name another folder")


def _common(part: RankState) -> dict[str, Any]:
    """Return what all have to know, also who has no part of its own."""
    names = ("schedule", "cut", "done", "warmup", "scores", "loss")
    return {name: part.state[name] for name in names} | {"now": part.state["runtime"]["now"]}


def _stand_at(training: Training, view: Membership, position: int, *, done: bool) -> None:
    """Stand at the beginning of the stretch that begins at ``position``."""
    training.holds, training.epoch = True, view.generation
    if not done and position < training.budget.total:
        training.stretch = 0
        while training.stretches[training.stretch].end <= position:
            training.stretch += 1
        if training.stretches[training.stretch].begin < position:
            training.cut(position)
            training.stretch += 1
        first_cut(training, position)
        now = training.stretches[training.stretch]
        training.offer([(now.begin, now.end)])
    else:
        training.stretch = len(training.stretches)
        training.offer([])


def _claim(training: Training) -> None:
    if training.stretch < len(training.stretches):
        now = training.stretches[training.stretch]
        training.claim_from(range(now.begin, now.end))


async def _same(training: Training, view: Membership, part: RankState, told: dict[str, Any]) -> None:
    """Go on with as many as there were: everyone has its own part."""
    put_back_weights(training.learner, [part])
    _stand_at(training, view, part.position, done=told["done"])
    await training.begin_strategy()
    put_back_weights(training.learner, [part])  # `setup` may scatter them
    put_back_strategy(training.acting, part)
    _claim(training)


async def _resized(training: Training, view: Membership, parts: list[RankState], told: dict[str, Any]) -> None:
    """Continue with another number: from the mean of all weights, owned parts, and ``replicated`` state."""
    learner, world, servers = training.learner, training.world, training.strategy.servers
    own = parts[0].tensors["weights"].clone() if parts else learner.weights.clone()
    if parts:
        put_back_weights(learner, parts, rates=False)
    _stand_at(training, view, view.plan["checkpoint"]["position"], done=told["done"])
    await training.begin_strategy()
    keeps = training.acting.owned_parts(learner)
    weight = 0.0 if keeps is None else float(len(parts))
    await world.mean(learner.weights, weight)
    await learner.sync_optimizer("average", world, weight)
    for constant in learner.constants:
        await world.broadcast(constant.data, root=servers)
    for rank, ranges in enumerate(await gather_json(world, [[part.start, part.stop] for part in keeps or ()])):
        for begin, end in ranges:
            known = own[begin:end].to(learner.weights) if world.rank == rank else learner.weights[begin:end].clone()
            learner.weights[begin:end].copy_(await world.broadcast(known, root=rank))
    if world.rank == servers and parts and told["warmup"] == (training.acting is training.warming):
        put_back_strategy(training.acting, parts[0], training.acting.replicated)
    for name in training.acting.replicated:
        await world.broadcast(getattr(training.acting, name), root=servers)
    if training.acting is training.strategy:
        learner.comm, learner.multiplicity = world, 1  # as `setup` found them
    training.acting.regroup(learner)
    _claim(training)

"""Seeded schedules of kills, restarts, pauses, cuts and slow links in the simulator, and what must hold after each.

A schedule is all in its seed: ``check("bmuf", 17)`` does the same each time, to the byte of its record.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.errors import Deadlock, SettingsError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, Fault, NetworkLink, NetworkPartition, SlowLink, Stop, Straggler
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, Simulation, simulate
from roundelay.strategies import STRATEGIES
from roundelay.strategy import Strategy
from roundelay.task import Scores, Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from roundelay.training.training_settings import CheckpointSettings

TRACE = 1e-3  # of what a minibatch usually leaves
LIMIT_SECONDS = 1000.0  # of virtual time; a run takes about three
SETTINGS: dict[str, dict[str, Any]] = {
    "asgd-updates": {"period": 3, "rate": 1.0},
    "averaging": {"period": 3},
    "bmuf": {"block": 3, "momentum": 0.3},
    "diloco": {"block": 3, "momentum": 0.3},
    "easgd": {"period": 2},
    "easgd-synchronous": {"period": 2},
    "gossip-pga": {"period": 3},
    "slowmo": {"period": 3, "momentum": 0.3},
}
"""What differs from the defaults: that blocks end often."""


class Pull(Task):
    """Each minibatch pulls three weights towards 1, and leaves a mark on one of its own, if it is one of the ``marks``.

    Its gradient takes no time to speak of.
    """

    nominal_frames, held_out = 4, 2

    def __init__(self, per_epoch: int, marks: int = 0) -> None:
        self.minibatches_per_epoch, self.marks = per_epoch, marks

    def make_module(self) -> nn.Module:
        module = nn.Linear(3 + self.marks, 1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        return module

    def frames(self, epoch: int, index: int) -> int:
        return 4 if index % 7 else 3

    def load(self, epoch: int, index: int) -> int:
        return epoch * self.minibatches_per_epoch + index

    def gradient(self, learner: Learner, batch: int) -> float:
        learner.grad.zero_()
        torch.sub(learner.snapshot[:3], 1.0, out=learner.grad[:3])
        if batch < self.marks:
            learner.grad[3 + batch] = -1.0
        return float(learner.grad[:3].square().sum())

    def score(self, module: nn.Module, index: int) -> Scores:
        loss = float((next(module.parameters())[0, :3] - 1.0).square().sum())
        return {"loss": loss, "frames": 1.0}


@dataclass
class Schedule:
    """What a seed means."""

    learners: int
    minibatches: int
    cluster: Cluster
    budget: dict[str, Any]
    checkpoint: CheckpointSettings | None


@dataclass
class Books:
    """Who trained what, by lives: one ends when a learner is killed, or, having been given up, joins as a newcomer."""

    lives: dict[int, int] = field(default_factory=dict)
    """By seat: the one that sits there, numbered as they began."""
    trainings: dict[int, Training] = field(default_factory=dict, compare=False, repr=False)
    """By seat."""
    trained: list[list[int]] = field(default_factory=list)
    """By life, as all that follows."""
    ids: list[set[int]] = field(default_factory=list)
    """Under which it took part."""
    merged: list[set[int]] = field(default_factory=list)
    """What went into a mean that somebody went on from."""
    lost: dict[int, set[int]] = field(default_factory=dict)
    """Of those whom the others went on without: what they then knew to be safe."""
    members: set[int] = field(default_factory=set)
    """All ids so far."""
    told: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """By membership epoch: what its members had trained before."""
    safe: dict[int, list[int]] = field(default_factory=dict)
    """By id: what was put down as safe, also by who had been given up: what it had sent was in use by then."""

    def begin(self, seat: int) -> None:
        """Let a new life begin."""
        self.lives[seat] = len(self.trained)
        self.trained.append([])
        self.ids.append(set())
        self.merged.append(set())

    def form(self, sim: Simulation) -> None:
        """Take note of a new membership epoch."""
        ids = {seat: sim._ids[seat] for seat in sim.alive}
        known = [seat for seat, each in ids.items() if each in self.members or not sim.generation]
        latest = max(self.trainings[seat].member.generation for seat in known)
        here = {self.lives[seat] for seat in known if self.trainings[seat].member.generation == latest}
        self.members |= set(ids.values())
        for life in here & set(self.lost):
            del self.lost[life]  # it was to join, but nobody went on from that: now it is counted in after all
        for life in set(range(len(self.trained))) - here - set(self.lost):
            self.lost[life] = self.merged[life].union(*(self.safe.get(each, ()) for each in self.ids[life]))
        self.told[sim.generation] = {life: list(self.trained[life]) for life in here}

    def merge(self, seat: int, epoch: int) -> None:
        """Take note that one of them has merged; who was given up and does not know it yet goes on in its old life."""
        members = self.told.get(epoch, {})
        for life, numbers in members.items():
            self.merged[life].update(numbers)
        if self.lives[seat] in self.lost and self.lives[seat] not in members:
            self.begin(seat)

    @property
    def in_vain(self) -> Counter[int]:
        """How often each minibatch was trained by a learner that was lost before the others knew it to be safe."""
        return Counter(
            number for life, known in self.lost.items() for number in self.trained[life] if number not in known
        )

    @property
    def kept(self) -> set[int]:
        """What was trained by a learner that was never lost, or was safe."""
        mine = (numbers for life, numbers in enumerate(self.trained) if life not in self.lost)
        return set().union(*mine, *self.merged, *self.safe.values())


@dataclass
class Told:
    """What came of it."""

    events: list[dict[str, Any]]
    seconds: float
    loss: float
    fired: int
    counts: Counter[int]
    books: Books
    traceless: list[int]
    """What left no mark in anybody's weights."""

    def count(self, event: str) -> int:
        return sum(line["event"] == event for line in self.events)


def draw(name: str, seed: int) -> Schedule:
    """Draw a schedule; so many ranks as the strategy needs to go on are left in peace."""
    rng = random.Random(f"{name} {seed}")
    strategy = make_strategy(name)
    learners = _fitting(strategy, rng.randint(3, 6))
    minibatches = rng.randint(40, 90)
    everyone = list(range(-strategy.servers, learners))
    peaceful = set(rng.sample(everyone, strategy.servers + 1))
    victims = [learner for learner in everyone if learner not in peaceful]
    horizon = 0.1 * minibatches / learners
    faults, stops, cuts, slow_links, stragglers = [], [], [], [], []
    for _ in range(rng.randint(1, 5)):
        victim, at = rng.choice(victims), rng.uniform(0.0, horizon)
        what = rng.choice(["kill", "kill", "stop", "cut", "link", "slow"])
        if what == "kill":
            again = rng.uniform(0.0, horizon / 2) if rng.random() < 0.7 else None
            faults.append(Fault(victim, at, again))
        elif what == "stop":
            stops.append(Stop(victim, at, rng.uniform(0.0, horizon)))
        elif what == "cut":
            cuts.append(
                NetworkPartition(
                    sorted(rng.sample(victims, rng.randint(1, len(victims)))), at, rng.uniform(0.0, horizon)
                )
            )
        elif what == "link":
            slow_links.append(SlowLink(victim, rng.choice([2.0, 30.0]), at, at + rng.uniform(0.0, horizon)))
        else:
            stragglers.append(Straggler(victim, rng.choice([2.0, 5.0]), at, announce=True))
    if not (faults or stops or cuts):
        faults.append(Fault(rng.choice(victims), rng.uniform(0.0, horizon)))
    cluster = Cluster(
        intra_node=NetworkLink(rng.choice([0.0, 1e-4, 0.02]), rng.choice([1e10, 1e3])),
        compute=Compute(seconds=0.1, jitter=rng.choice([0.0, 0.3])),
        detection_seconds=rng.choice([0.0, 0.01, 0.1]),
        heartbeat_timeout=rng.choice([0.05, 0.3, 1.0]),
        stragglers=stragglers, faults=faults, stops=stops, partitions=cuts, slow_links=slow_links,
    )  # fmt: skip
    budget = {
        "evaluate_every": rng.choice([None, 17]),
        "warmup": rng.choice([0, 0, 0, 13]),
        "shards": rng.choice([None, None, None, learners]),
    }
    checkpoint = rng.choice([None, None, CheckpointSettings(every_frames=1), CheckpointSettings(every_minutes=0.01)])
    budget["checkpoint_every"] = 11 if checkpoint is not None and checkpoint.every_frames is not None else None
    return Schedule(learners, minibatches, cluster, budget, checkpoint)


def run(name: str, seed: int, schedule: Schedule | None = None) -> Told:
    """Train through a schedule, by default that of the seed."""
    schedule, strategy = schedule or draw(name, seed), make_strategy(name)
    task = Pull(max(20, schedule.minibatches // 2), marks=schedule.minibatches)
    budget = Budget(task.minibatches_per_epoch, schedule.minibatches, **schedule.budget)
    job = Job(task, strategy, budget, lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.2), debug=True)
    job.checkpoint = schedule.checkpoint
    text, books = io.StringIO(), Books()

    def make(runtime: SimulatedRuntime) -> Training:
        if not books.lives:
            _watch(runtime.sim, books)
        runtime.pause_clock = lambda *, paused: None  # type: ignore[method-assign]  # faults inside meetings, too
        training = job.training(runtime)
        _keep_books(training, runtime, books)
        return training

    record = Record(text, clock="virtual", spans=0)
    outcome = simulate(
        make, schedule.cluster, learners=schedule.learners, servers=strategy.servers, seed=seed, record=record,
        shuffle=seed if seed % 2 else None,
    )  # fmt: skip
    events = [json.loads(line) for line in text.getvalue().splitlines()]
    counts = Counter(line["minibatch"] for line in events if line["event"] == "step")
    _check_agreement(outcome.finished, outcome.consensus)
    loss = float((outcome.consensus[:3] - 1.0).square().mean())
    everyone = torch.stack([outcome.consensus, *(training.learner.weights for training in outcome.finished)])
    marks = everyone[:, 3 : 3 + schedule.minibatches].amax(dim=0)
    traceless = (marks <= TRACE * marks.median()).nonzero().flatten().tolist()
    return Told(events, outcome.seconds, loss, len(outcome.fired), counts, books, traceless)


def check(name: str, seed: int, schedule: Schedule | None = None) -> Told:
    """See that all went well: nothing hung, no minibatch was lost or trained too often, the model has learnt.

    Each is trained once, and once more for each learner that was lost after training it and before it was safe.  Where
    but one was lost, all have left their marks; what is safe with another is gone where both are lost at once.
    """
    schedule = schedule or draw(name, seed)
    told = run(name, seed, schedule)
    missing = set(range(schedule.minibatches)) - set(told.counts)
    assert not missing, f"{name}, seed {seed}: {sorted(missing)} were never trained"
    lost = set(told.counts) - told.books.kept
    assert not lost, f"{name}, seed {seed}: {sorted(lost)} were lost with those who had trained them"
    in_vain = told.books.in_vain
    often = [number for number, count in told.counts.items() if count > 1 + in_vain[number]]
    assert not often, f"{name}, seed {seed}: {sorted(often)} were trained more often than they were lost"
    if len(told.books.lost) < 2:
        assert not told.traceless, f"{name}, seed {seed}: {told.traceless} are in nobody's weights"
    assert math.isfinite(told.loss), f"{name}, seed {seed}"
    assert told.loss < 0.9, f"{name}, seed {seed}: the loss is {told.loss}"
    return told


def make_strategy(name: str) -> Strategy:
    """Make a strategy of the registry, with blocks that end often."""
    return STRATEGIES[name](**SETTINGS.get(name, {}))


def _keep_books(training: Training, runtime: SimulatedRuntime, books: Books) -> None:
    tracker, seat = training.member.tracker, runtime.initial_rank
    finished, begin = tracker.finished, tracker.begin

    def note(number: int) -> None:
        books.trained[books.lives[seat]].append(number)
        books.ids[books.lives[seat]].add(runtime.sim._ids[seat])
        finished(number)

    def note_merge(*, keep: bool = False) -> None:
        if not keep:
            books.merge(seat, training.member.generation)
        begin(keep=keep)

    books.begin(seat)
    books.trainings[seat] = training
    tracker.finished = note  # type: ignore[method-assign]  # to see what is trained
    tracker.begin = note_merge  # type: ignore[method-assign]  # and that all hold it from now on


def _watch(sim: Simulation, books: Books) -> None:
    """Take note of whom the others go on without, and end what does not end."""
    connect, books.safe = sim.connect, sim.safe

    def noted(learners: list[Learner]) -> None:
        books.form(sim)
        connect(learners)

    def check_end() -> None:
        if not sim.finished:
            waits = "; ".join(f"{task.label} awaits {task.awaits.label}" for task in sim.loop.tasks if task.awaits)
            raise Deadlock(f"still training after {LIMIT_SECONDS:g} s of virtual time: {waits}")

    sim.connect = noted  # type: ignore[method-assign]  # to see who is lost
    sim.loop.call_later(LIMIT_SECONDS, check_end)


def _check_agreement(finished: list[Training], consensus: Tensor) -> None:
    sizes = {each.member.world.size for each in finished if each.member.generation == finished[0].member.generation}
    assert len(sizes) == 1
    assert bool(torch.isfinite(consensus).all())


def _fitting(strategy: Strategy, learners: int) -> int:
    while learners > 2:
        try:
            strategy.check(learners)
        except SettingsError:
            learners -= 1
        else:
            break
    return learners

"""Collectives of torch.distributed (gloo, or NCCL for tensors on a GPU); messages between two by `GlooPost`.

A thread of its own runs a group's collectives in order.  Gloo cannot be interrupted, and it ends the whole process when
two ranks call it with different sizes: so each collective is announced to the next rank first, and started only when
the previous rank has announced the same one.
"""

from __future__ import annotations

import datetime
import functools
import queue
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import LearnerLost, Mismatch
from roundelay.runtimes.processes.transport.gloo_messages import FOREVER, interrupt
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, c10d, torch_message
from roundelay.runtimes.processes.transport.messages import Kind, Label, Layout, raw_bytes
from roundelay.runtimes.processes.transport.session import PointToPoint, Session
from roundelay.runtimes.strategy_lock import Blocking
from roundelay.runtimes.weighted_mean import divide, scale

__all__ = ["TorchCommunicator", "connect_by_device"]

CONNECT = datetime.timedelta(seconds=30)
WEIGHT_BYTES = 8


class ProcessGroup(Protocol):
    """What we use of torch's process groups."""

    def allreduce(self, tensors: list[Tensor], /) -> Any: ...
    def broadcast(self, tensor: Tensor, root: int, /) -> Any: ...
    def abort(self) -> None: ...
    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...
    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


Connect = Callable[[str, int, int, str], ProcessGroup]
"""Make the process group called so, of which we are this rank of so many, for tensors on such a device."""


class TorchCommunicator(PointToPoint):
    """A communicator over a torch process group."""

    def __init__(self, session: Session, members: Sequence[int], connect: Connect, path: str = "world") -> None:
        super().__init__(session, members, path)
        self._connect = connect
        self._sequence = 0
        self._stages = _Stages()
        self._works: queue.SimpleQueue[_Collective | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._groups: dict[str, ProcessGroup] = {}  # by the kind of device that their tensors are on
        session.closers.append(self._close)

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the mean over the group."""
        if self.size == 1:
            return Blocking(lambda: x)
        with self.session.communicating():
            stage = self._stages.take(x, self.size * WEIGHT_BYTES)
            _load(stage, x, weight, self.rank)

        def finish() -> Tensor:
            weights = _weights(stage, x.numel(), self.size)
            if any(weights):
                x.copy_(divide(stage[: x.numel()], sum(weights)).view(x.shape))
            self._stages.give(stage)
            return x

        return self._begin("mean", x, lambda group: group.allreduce([stage]), finish)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``root``'s ``x`` into everyone's."""
        if self.size == 1:
            return Blocking(lambda: x)
        data = x.detach().clone(memory_format=torch.contiguous_format)
        flat = raw_bytes(data)

        def finish() -> Tensor:
            if self.rank != root:
                x.copy_(data)
            return x

        return self._begin(f"broadcast from {root}", x, lambda group: group.broadcast(flat, root), finish)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Everyone's ``x`` in rank order, each sent straight to all."""
        self._sequence += 1
        label, mine = Label(Kind.GATHER, self.key, self._sequence), x.detach().clone()
        for other in range(self.size):
            if other != self.rank:
                self._send(other, label, mine)

        def finish() -> list[Tensor]:
            post, everyone = self.session.transport, []
            for rank, member in enumerate(self.members):
                if rank == self.rank:
                    everyone.append(mine)
                    continue
                message = self.session.wait(functools.partial(post.receive, member, label))
                everyone.append(message.tensor.to(x.device))  # never released: what gather returns is kept by whoever
            return everyone

        return Blocking(finish)

    def _make(self, members: Sequence[int], path: str) -> Communicator:
        return TorchCommunicator(self.session, members, self._connect, path)

    def _begin(
        self, operation: str, x: Tensor, start: Callable[[ProcessGroup], Any], finish: Callable[[], Tensor]
    ) -> Awaitable[Tensor]:
        if self.session.end_reason is not None:
            raise LearnerLost(self.session.end_reason)
        self._sequence += 1
        _synchronize(x.device.type)  # our thread has another stream
        collective = _Collective(self._sequence, operation, x, start)
        self._announce(collective)
        self.session.recorder.sent(collective.layout.nbytes)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"collectives {self.path}", daemon=True)
            self._thread.start()
            self.session.threads.append(self._thread)
        self._works.put(collective)

        def wait() -> Tensor:
            self.session.wait(lambda: collective.done or None)
            if collective.error is not None:
                raise collective.error
            with self.session.communicating():
                return finish()

        return Blocking(wait)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (collective := self._works.get()) is not None and self.session.end_reason is None:
            try:
                self._compare(collective)
                if collective.device not in self._groups:
                    self._groups[collective.device] = self._connect(self.path, self.rank, self.size, collective.device)
                collective.start(self._groups[collective.device]).wait(FOREVER)
                _synchronize(collective.device)
            except (LearnerLost, Mismatch) as error:
                collective.error = error
            except RuntimeError as error:  # torch has no narrower one: a peer is gone, or the group was closed on us
                collective.error = LearnerLost(f"a {collective.operation} failed: {torch_message(error)}")
            collective.done = True
            self.session.transport.wake()

    def _close(self) -> None:
        """Wake our thread, wherever it is."""
        self._works.put(None)
        for device, group in self._groups.items() if self.session.end_reason is not None else ():
            if device == "cuda":  # not run by any test: there is no GPU
                group.abort()
            else:
                interrupt(group, self.rank, self.size)

    def _announce(self, collective: _Collective) -> None:
        text = f"{collective.operation}|{collective.layout.dtype}|{','.join(map(str, collective.layout.shape))}"
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        after = self.members[(self.rank + 1) % self.size]
        self.session.transport.send(after, Label(Kind.CHECK, self.key, collective.number), data)

    def _compare(self, collective: _Collective) -> None:
        """Wait until the previous rank has called a collective too, and see that it is this one."""
        before, label = (self.rank - 1) % self.size, Label(Kind.CHECK, self.key, collective.number)
        post, member = self.session.transport, self.members[before]
        message = post.wait(lambda: post.receive(member, label))
        verb, dtype, shape = bytes(message.tensor.tolist()).decode().split("|")
        message.release()
        mine = collective.layout
        numel = 1
        for length in shape.split(",") if shape else []:
            numel *= int(length)
        if (verb, dtype, numel) != (collective.operation, str(mine.dtype), mine.nbytes // mine.dtype.itemsize):
            raise Mismatch(
                f"collective {collective.number}: rank {before} called {verb}({shape}) {dtype}, "
                f"rank {self.rank} called {collective.operation}({','.join(map(str, mine.shape))}) {mine.dtype}"
            )


class _Collective:
    """A collective under way."""

    def __init__(self, number: int, operation: str, x: Tensor, start: Callable[[ProcessGroup], Any]) -> None:
        self.number, self.operation, self.start = number, operation, start
        self.layout, self.device = Layout.of(x), x.device.type
        self.done = False
        self.error: Exception | None = None


class _Stages:
    """Vectors that collectives work in, so that one that fails leaves the caller's as it was."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, torch.device, int], list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor, extra: int) -> Tensor:
        kept = self._kept[like.dtype, like.device, like.numel() + extra]
        return kept.pop() if kept else like.new_empty(like.numel() + extra)

    def give(self, stage: Tensor) -> None:
        self._kept[stage.dtype, stage.device, stage.numel()].append(stage)


def _load(stage: Tensor, x: Tensor, weight: float, rank: int) -> None:
    """Write ``weight * x`` and, behind it, the bytes of the weight: the others' are zero, so that sums keep them all.

    A byte is exact in every floating type, so one all-reduce brings the sum and all weights to the bit.
    """
    size = x.numel()
    stage[:size].copy_(scale(x, weight).reshape(-1))
    stage[size:].zero_()
    mine = torch.tensor([weight], dtype=torch.float64).view(torch.uint8).to(stage)
    stage[size + rank * WEIGHT_BYTES : size + (rank + 1) * WEIGHT_BYTES].copy_(mine)


def _weights(stage: Tensor, numel: int, size: int) -> list[float]:
    return [float(w) for w in stage[numel:].cpu().to(torch.uint8).view(size, WEIGHT_BYTES).view(torch.float64)]


def _synchronize(device: str) -> None:
    """Wait for what a GPU has been given to do."""
    if device == "cuda":  # not run by any test: there is no GPU
        torch.cuda.current_stream().synchronize()


def connect_by_device(store: KeyValueStore, generation: int, address: str) -> Connect:
    """Return what makes the groups of one epoch, each under a prefix of its own in the store.

    Gloo's are for tensors in host memory; NCCL's, for tensors on a GPU, have never been run.
    """

    def connect(path: str, rank: int, size: int, device: str) -> ProcessGroup:
        own = store.clone()  # connecting cannot be stopped: it must hold nobody else's client
        prefix = c10d.PrefixStore(f"{device}/{generation}/{path}", own.raw)
        if device == "cuda":  # not run by any test: there is no GPU
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = FOREVER
            group = c10d.ProcessGroupNCCL(prefix, rank, size, options)
        else:
            options = c10d.ProcessGroupGloo._Options()
            options._timeout, options._threads = CONNECT, 1
            options._devices = [c10d.ProcessGroupGloo.create_device(hostname=address)]
            group = c10d.ProcessGroupGloo(prefix, rank, size, options)
            group._set_default_timeout(FOREVER)
        made: ProcessGroup = group
        return made

    return connect

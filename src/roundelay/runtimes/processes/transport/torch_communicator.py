"""Collectives of torch.distributed (gloo, or NCCL for tensors on a GPU); other messages by `GlooTransport`.

One thread per group runs its collectives in order.  Gloo cannot be interrupted, and it ends the whole process if two
ranks call it with different sizes.  So each collective is announced to the next rank first, and starts only when the
previous rank has announced the same one.
"""

from __future__ import annotations

import datetime
import hmac
import queue
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import LearnerLost, Mismatch
from roundelay.runtimes.blocking import Blocking
from roundelay.runtimes.messages import CollectiveCall, Kind, Label, raw_bytes
from roundelay.runtimes.processes.transport.gloo_messages import FOREVER, interrupt
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, c10d, torch_message
from roundelay.runtimes.session import PointToPoint, Session
from roundelay.runtimes.weighted_mean import divide, scale

CONNECT = datetime.timedelta(seconds=30)
WEIGHT_BYTES = 8
PROOFS, PROOF_BYTES = 3, 32  # the tag, and the length


class _ProcessGroup(Protocol):
    """The part of torch's process groups that is used here."""

    def allreduce(self, tensors: list[Tensor], /) -> Any: ...
    def broadcast(self, tensor: Tensor, root: int, /) -> Any: ...
    def abort(self) -> None: ...
    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...
    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


Connect = Callable[[str, int, int, str], _ProcessGroup]
"""Make a process group, from its name, our rank, its size, and the kind of device of its tensors."""


class TorchCommunicator(PointToPoint):
    """A communicator over a torch process group."""

    def __init__(self, session: Session, members: Sequence[int], connect: Connect, path: str = "world") -> None:
        super().__init__(session, members, path)
        self._connect = connect
        self._sequence = 0
        self._stages = _Stages()
        self._works: queue.SimpleQueue[_Collective | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._groups: dict[str, _ProcessGroup] = {}  # by the kind of device of their tensors
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

        return self._begin(CollectiveCall.of("mean", x), x, lambda group: group.allreduce([stage]), finish)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        if self.size == 1:
            return Blocking(lambda: x)
        data = x.detach().clone(memory_format=torch.contiguous_format)
        flat = raw_bytes(data)

        def finish() -> Tensor:
            if self.rank != root:
                x.copy_(data)
            return x

        call = CollectiveCall.of("broadcast", x, root)
        return self._begin(call, x, lambda group: group.broadcast(flat, root), finish)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return ``x`` of all ranks; each rank sends its own to all others."""
        self._reclaim_results(Kind.GATHER)
        self._sequence += 1
        label, mine = Label(Kind.GATHER, self.key, self._sequence), x.detach().clone()
        for other in range(self.size):
            if other != self.rank:
                self._send(other, label, mine)

        def finish() -> list[Tensor]:
            return [mine if rank == self.rank else self._receive(rank, label, x) for rank in range(self.size)]

        return Blocking(finish)

    def _make(self, members: Sequence[int], path: str) -> Communicator:
        return TorchCommunicator(self.session, members, self._connect, path)

    def _begin(
        self, call: CollectiveCall, x: Tensor, start: Callable[[_ProcessGroup], Any], finish: Callable[[], Tensor]
    ) -> Awaitable[Tensor]:
        if self.session.end_reason is not None:
            raise LearnerLost(self.session.end_reason)
        self._sequence += 1
        _synchronize(x.device.type)  # our thread uses another stream
        collective = _Collective(self._sequence, call, x.device.type, start)
        after = self.members[(self.rank + 1) % self.size]
        label = Label(Kind.CHECK, self.key, collective.number)
        self.session.transport.send(after, label, torch.tensor(call.encode()))
        self.session.recorder.count_bytes(call.layout.nbytes)
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
            except RuntimeError as error:  # torch has no narrower class: a peer is gone, or the group was closed
                collective.error = LearnerLost(f"a {collective.call.operation} failed: {torch_message(error)}")
            collective.done = True
            self.session.transport.wake()

    def _close(self) -> None:
        """End our thread, even while it waits."""
        self._works.put(None)
        for device, group in self._groups.items() if self.session.end_reason is not None else ():
            if device == "cuda":  # not run by any test: there is no GPU
                group.abort()
            else:
                interrupt(group, self.rank, self.size)

    def _compare(self, collective: _Collective) -> None:
        """Wait until the previous rank has announced a collective; raise `Mismatch` if it is another one."""
        before, label = (self.rank - 1) % self.size, Label(Kind.CHECK, self.key, collective.number)
        transport, member = self.session.transport, self.members[before]
        message = transport.wait(lambda: transport.receive(member, label))
        theirs = CollectiveCall.decode(message.tensor.tolist())
        message.release()
        collective.call.check(theirs, collective.number, rank=self.rank, other=before)


class _Collective:
    """A collective under way."""

    def __init__(self, number: int, call: CollectiveCall, device: str, start: Callable[[_ProcessGroup], Any]) -> None:
        self.number, self.call, self.device, self.start = number, call, device, start
        self.done = False
        self.error: Exception | None = None


class _Stages:
    """Vectors in which collectives work, so that one that fails leaves the caller's tensor unchanged."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, torch.device, int], list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor, extra: int) -> Tensor:
        kept = self._kept[like.dtype, like.device, like.numel() + extra]
        return kept.pop() if kept else like.new_empty(like.numel() + extra)

    def give(self, stage: Tensor) -> None:
        self._kept[stage.dtype, stage.device, stage.numel()].append(stage)


def _load(stage: Tensor, x: Tensor, weight: float, rank: int) -> None:
    """Write ``weight * x`` and behind it one slot per rank for the bytes of its weight, zero for other ranks.

    A byte is exact in every floating type, so one all-reduce gives the sum and all weights exactly.
    """
    size = x.numel()
    stage[:size].copy_(scale(x, weight).reshape(-1))
    stage[size:].zero_()
    mine = torch.tensor([weight], dtype=torch.float64).view(torch.uint8).to(stage)
    stage[size + rank * WEIGHT_BYTES : size + (rank + 1) * WEIGHT_BYTES].copy_(mine)


def _weights(stage: Tensor, numel: int, size: int) -> list[float]:
    return [float(w) for w in stage[numel:].cpu().to(torch.uint8).view(size, WEIGHT_BYTES).view(torch.float64)]


def _synchronize(device: str) -> None:
    """Wait until a GPU has done all its work."""
    if device == "cuda":  # not run by any test: there is no GPU
        torch.cuda.current_stream().synchronize()


def _prove_membership(group: _ProcessGroup, rank: int, size: int, prove: Callable[[int, int], bytes | None]) -> None:
    """Exchange proofs with all peers that we know the run's secret.

    Gloo accepts whoever comes to its port first with the right number, which is small and known: a stranger could take
    the place of a peer.
    """
    peers = [peer for peer in range(size) if peer != rank]
    ours = {peer: prove(rank, peer) for peer in peers}
    theirs = {peer: torch.zeros(PROOF_BYTES, dtype=torch.uint8) for peer in peers}
    works = []
    for peer, proof in ours.items():
        if proof is not None:  # else the run has no secret
            works.append(group.recv([theirs[peer]], peer, PROOFS))
            works.append(group.send([torch.frombuffer(bytearray(proof), dtype=torch.uint8)], peer, PROOFS))
    for work in works:
        work.wait(CONNECT)
    for peer, tensor in theirs.items() if works else ():
        if not hmac.compare_digest(tensor.numpy().tobytes(), prove(peer, rank) or b""):
            interrupt(group, rank, size)
            raise RuntimeError(f"who answers for rank {peer} does not know the secret of this run")


def connect_by_device(store: KeyValueStore, generation: int, address: str) -> Connect:
    """Return the function that makes the groups of one generation, each with its own prefix in the store.

    Gloo is for tensors in host memory; NCCL, for tensors on a GPU, has never been run.
    """

    def connect(path: str, rank: int, size: int, device: str) -> _ProcessGroup:
        from roundelay.runtimes.processes.transport.torch_store import for_torch

        own = store.clone()  # connecting cannot be interrupted and occupies its client
        name = f"{device}/{generation}/{path}"
        prefix = for_torch(own, name)
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
            _prove_membership(group, rank, size, lambda sender, to: store.prove(f"{name} {sender} {to}"))
        made: _ProcessGroup = group
        return made

    return connect

"""Collectives of torch.distributed: gloo on the CPU, and on an accelerator its own library, such as NCCL.

One thread per group runs its collectives in order.  Gloo cannot be interrupted, and it ends the whole process if two
ranks call it with different sizes; other libraries hang.  So each collective is announced to the next rank first, and
starts only when the previous rank has announced the same one.

On an accelerator nothing here waits for the device: a collective is begun on a stream of its own, behind what the
caller's stream has to do, and the caller's stream continues behind it.  A peer that is lost leaves the device waiting;
`Session.abort` ends that.  Ranks that share a device, which its library cannot connect, go through host memory.
"""

from __future__ import annotations

import datetime
import hmac
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.devices import CPU, await_mark, mark_stream, to_device, use_device
from roundelay.errors import LearnerLost, Mismatch
from roundelay.runtimes.blocking import Blocking
from roundelay.runtimes.messages import CollectiveCall, Kind, Label, raw_bytes
from roundelay.runtimes.processes.transport.device_groups import make_device_group
from roundelay.runtimes.processes.transport.gloo_messages import FOREVER, interrupt
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, c10d, torch_message
from roundelay.runtimes.session import PointToPoint, Session
from roundelay.runtimes.weighted_mean import divide

CONNECT = datetime.timedelta(seconds=30)
WEIGHT_BYTES = 8
PROOFS, PROOF_BYTES = 3, 32  # the tag, and the length


class _ProcessGroup(Protocol):
    """The part of torch's process groups that is used here."""

    def allreduce(self, tensors: list[Tensor], /) -> Any: ...
    def broadcast(self, tensor: Tensor, root: int, /) -> Any: ...
    def abort(self) -> None: ...
    def shutdown(self) -> None: ...
    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...
    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


Connect = Callable[[str, int, int, str], _ProcessGroup]
"""Make a process group, from its name, our rank, its size, and the kind of device of its tensors."""


class TorchCommunicator(PointToPoint):
    """A communicator over a torch process group."""

    def __init__(
        self,
        session: Session,
        members: Sequence[int],
        connect: Connect,
        path: str = "world",
        places: Sequence[str] = (),
    ) -> None:
        super().__init__(session, members, path)
        self._connect, self._places = connect, places
        own = [places[member] for member in self.members] if places else []
        self._through_host = len(set(own)) < len(own)  # two of us have the same device
        self._stream: torch.Stream | None = None
        self._sequence = 0
        self._stages = _Stages()
        self._works: queue.SimpleQueue[_Collective | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._groups: dict[str, _ProcessGroup] = {}  # by the kind of device of their tensors
        session.closers.append(self._close)
        session.aborters.append(self._abort)

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the mean over the group."""
        if self.size == 1:
            return Blocking(lambda: x)
        with self.session.communicating():
            stage = self._stages.take(x, self.size * WEIGHT_BYTES, self._device(x))
            _load(stage, x, weight, self.rank)

        def finish() -> Tensor:
            if stage.device.type == "cpu":
                weights = _weights(stage, x.numel(), self.size)
                if any(weights):
                    x.copy_(divide(stage[: x.numel()], sum(weights)).view(x.shape))
            else:
                _finish_on_device(stage, x, self.size)
            self._stages.give(stage)
            return x

        return self._begin(CollectiveCall.of("mean", x), stage.device, lambda group: group.allreduce([stage]), finish)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        if self.size == 1:
            return Blocking(lambda: x)
        data = x.detach().to(self._device(x), copy=True).contiguous()
        flat = raw_bytes(data)

        def finish() -> Tensor:
            if self.rank != root:
                x.copy_(data)
            return x

        call = CollectiveCall.of("broadcast", x, root)
        return self._begin(call, data.device, lambda group: group.broadcast(flat, root), finish)

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
        return TorchCommunicator(self.session, members, self._connect, path, self._places)

    def _device(self, x: Tensor) -> torch.device:
        """Return where a collective of ``x`` works."""
        return CPU if self._through_host else x.device

    def _begin(
        self,
        call: CollectiveCall,
        device: torch.device,
        start: Callable[[_ProcessGroup], Any],
        finish: Callable[[], Tensor],
    ) -> Awaitable[Tensor]:
        if self.session.end_reason is not None:
            raise LearnerLost(self.session.end_reason)
        self._sequence += 1
        collective = _Collective(self._sequence, call, device, start, mark_stream(device))
        after = self.members[(self.rank + 1) % self.size]
        label = Label(Kind.CHECK, self.key, collective.number)
        self.session.transport.send(after, label, torch.tensor(call.encode(), device="cpu"))
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
                await_mark(collective.after, device)
                return finish()

        return Blocking(wait)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (collective := self._works.get()) is not None and self.session.end_reason is None:
            try:
                self._compare(collective)
                kind = collective.device.type
                if kind not in self._groups:
                    use_device(collective.device)
                    self._groups[kind] = self._connect(self.path, self.rank, self.size, kind)
                    self._abort_if_ended()
                if kind == "cpu":
                    collective.start(self._groups[kind]).wait(FOREVER)
                else:
                    self._start_on_device(collective)
            except (LearnerLost, Mismatch) as error:
                collective.error = error
            except RuntimeError as error:  # torch has no narrower class: a peer is gone, or the group was closed
                collective.error = LearnerLost(f"a {collective.call.operation} failed: {torch_message(error)}")
            collective.done = True
            self.session.transport.wake()

    def _start_on_device(self, collective: _Collective) -> None:
        """Begin a collective behind what the caller's stream had to do; nothing here waits for the device."""
        if self._stream is None:
            self._stream = torch.Stream(collective.device)
        with self._stream:
            await_mark(collective.before, collective.device)
            collective.start(self._groups[collective.device.type]).wait()
            collective.after = mark_stream(collective.device)

    def _abort_if_ended(self) -> None:
        """Abort a group that was being made when a learner was lost."""
        if self.session.end_reason is not None:
            self._abort()

    def _abort(self) -> None:
        """End what the device waits for; by any thread, since ours may wait for the device too."""
        for kind, group in list(self._groups.items()):
            if kind != "cpu":
                group.abort()

    def _close(self) -> None:
        """End our thread, even while it waits."""
        self._works.put(None)
        for kind, group in self._groups.items():
            if self.session.end_reason is None:
                if kind != "cpu":
                    group.shutdown()
            elif kind == "cpu":
                interrupt(group, self.rank, self.size)
            else:
                group.abort()

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

    def __init__(
        self,
        number: int,
        call: CollectiveCall,
        device: torch.device,
        start: Callable[[_ProcessGroup], Any],
        before: torch.Event | None,
    ) -> None:
        self.number, self.call, self.device, self.start = number, call, device, start
        self.before = before  # what the caller's stream had to do before
        self.after: torch.Event | None = None  # what it has to wait for after
        self.done = False
        self.error: Exception | None = None


class _Stages:
    """Vectors in which collectives work, so that one that fails leaves the caller's tensor unchanged."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, torch.device, int], list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor, extra: int, device: torch.device) -> Tensor:
        kept = self._kept[like.dtype, device, like.numel() + extra]
        return kept.pop() if kept else torch.empty(like.numel() + extra, dtype=like.dtype, device=device)

    def give(self, stage: Tensor) -> None:
        self._kept[stage.dtype, stage.device, stage.numel()].append(stage)


def _load(stage: Tensor, x: Tensor, weight: float, rank: int) -> None:
    """Write ``weight * x`` and behind it one slot per rank for the bytes of its weight, zero for other ranks.

    A byte is exact in every floating type, so one all-reduce gives the sum and all weights exactly.
    """
    size, data = x.numel(), stage[: x.numel()].view(x.shape)
    if weight in (0.0, 1.0) or stage.device != x.device:
        _ = data.copy_(x) if weight else data.zero_()
        if weight not in (0.0, 1.0):
            data.mul_(weight)
    else:
        torch.mul(x.detach(), weight, out=data)
    stage[size:].zero_()
    mine = torch.tensor([weight], dtype=torch.float64, device="cpu").view(torch.uint8).to(stage.dtype)
    stage[size + rank * WEIGHT_BYTES : size + (rank + 1) * WEIGHT_BYTES].copy_(to_device(mine, stage.device))


def _weights(stage: Tensor, numel: int, size: int) -> list[float]:
    return [float(w) for w in stage[numel:].cpu().to(torch.uint8).view(size, WEIGHT_BYTES).view(torch.float64)]


def _finish_on_device(stage: Tensor, x: Tensor, size: int) -> None:
    """Divide by the sum of the weights, which the host need not know; ``x`` is unchanged if they are all 0."""
    count = x.numel()
    weights = stage[count:].to(torch.uint8).view(torch.float64)
    total = weights[0]
    for weight in weights[1:].unbind():
        total = total + weight
    mean, wide = stage[:count], torch.promote_types(stage.dtype, torch.float32)
    mean.copy_(mean.to(wide).div_(total.to(wide)))  # no copy if it is wide enough
    if x.is_contiguous():
        torch.where(total > 0, mean, x.view(-1), out=x.view(-1))
    else:
        x.copy_(torch.where(total > 0, mean.view(x.shape), x))


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


def _network_device(address: str) -> Any:
    """Return where gloo listens: at our address, or at the interface that the user has named, as for torch itself."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return c10d.ProcessGroupGloo.create_device(interface=interface)
    return c10d.ProcessGroupGloo.create_device(hostname=address)


def connect_by_device(store: KeyValueStore, generation: int, address: str) -> Connect:
    """Return the function that makes the groups of one generation, each with its own prefix in the store.

    Gloo is for tensors in host memory, an accelerator's own library for its tensors.
    """

    def connect(path: str, rank: int, size: int, device: str) -> _ProcessGroup:
        from roundelay.runtimes.processes.transport.torch_store import for_torch

        own = store.clone()  # connecting cannot be interrupted and occupies its client
        name = f"{device}/{generation}/{path}"
        prefix = for_torch(own, name)
        if device != "cpu":
            group = make_device_group(device, prefix, rank, size)
        else:
            options = c10d.ProcessGroupGloo._Options()
            options._timeout, options._threads = CONNECT, 1
            options._devices = [_network_device(address)]
            group = c10d.ProcessGroupGloo(prefix, rank, size, options)
            group._set_default_timeout(FOREVER)
            _prove_membership(group, rank, size, lambda sender, to: store.prove(f"{name} {sender} {to}"))
        made: _ProcessGroup = group
        return made

    return connect

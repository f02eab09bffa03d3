"""Collectives of the stand-in device, with NCCL's rules, over a gloo group on host memory.

Work returns at once, and is done in the order in which it was begun; `wait` holds up the current stream, not the host.
All ranks must begin the same work in the same order, each on a device of its own.  If a peer is lost, the work never
ends, until someone calls `abort`; the error is only in the work.  There is no receive from any source.
Numbers are added in the order of ranks, so that sums are the simulator's to the bit.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import stand_in_extension as extension
import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # its type information is incomplete

AT_ONCE = datetime.timedelta(milliseconds=1)
FOREVER = datetime.timedelta(days=365)
HEADER_WORDS = 6
UNUSED_TAG = 91


class StandInWork:
    """Work that has begun."""

    def __init__(self, index: int) -> None:
        self.fence, self._index = extension.Fence(), index
        self.error: Exception | None = None

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait, not the host."""
        self.fence.block_stream(self._index)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self.fence.ready())

    def exception(self) -> Exception | None:
        return self.error


class StandInGroup(dist.ProcessGroup):  # type: ignore[misc]  # as above
    """A communicator of the stand-in."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._works: queue.SimpleQueue[tuple[StandInWork, list[int], Tensor, Any, Callable[[Any], None]] | None]
        self._works = queue.SimpleQueue()
        self._number, self._places = 0, ""
        self._aborted = threading.Event()
        self._host: Any = None
        self._thread = threading.Thread(target=self._run, name="stand-in collectives", daemon=True)
        self._thread.start()

    def getBackendName(self) -> str:  # noqa: N802  # torch's
        return "stand_in"

    # -- what torch's process groups have -----------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> StandInWork:
        (tensor,) = tensors
        host = _host_view(tensor)

        def add(group: Any) -> None:
            parts = [torch.empty_like(host) for _ in range(self._size)]
            group.allgather([parts], [host]).wait(FOREVER)
            total = parts[0]
            for part in parts[1:]:
                total += part
            host.copy_(total)

        return self._begin(1, tensor, 0, add)

    def broadcast(self, tensors: Tensor | list[Tensor], root: Any = None) -> StandInWork:
        tensor = tensors if isinstance(tensors, Tensor) else tensors[0]
        source = int(getattr(root, "rootRank", root))
        host = _host_view(tensor)
        return self._begin(2, tensor, source, lambda group: group.broadcast(host, source).wait(FOREVER))

    def recv_anysource(self, *_: Any) -> None:
        raise RuntimeError("stand_in: there is no receive from any source, as in NCCL")

    def abort(self) -> None:
        """End all work, begun or not; what it was to write is undefined then."""
        self._aborted.set()
        self._works.put(None)
        if self._host is not None:
            _close_connections(self._host, self._rank, self._size)

    def shutdown(self) -> None:
        """End at the normal end: all work that was begun is done first."""
        self._works.put(None)
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _begin(self, operation: int, tensor: Tensor, root: int, work: Callable[[Any], None]) -> StandInWork:
        if tensor.device.type != "stand_in":
            raise RuntimeError(f"stand_in: no backend for tensors on {tensor.device}")
        if not tensor.is_contiguous():
            raise RuntimeError("stand_in: Tensors must be contiguous")
        if self._aborted.is_set():
            raise RuntimeError("stand_in: the communicator was aborted")
        place = f"{os.uname().nodename} {tensor.device.index}"
        if self._places not in ("", place):
            raise RuntimeError(f"stand_in: a communicator of {self._places} was given a tensor of {place}")
        self._places = place
        self._number += 1
        words = [self._number, operation, tensor.numel(), tensor.dtype.itemsize, root, tensor.device.index]
        made = StandInWork(tensor.device.index)
        self._works.put((made, words, tensor, extension.mark_stream(tensor.device.index), work))
        return made

    def _run(self) -> None:
        while (item := self._works.get()) is not None and not self._aborted.is_set():
            made, words, _tensor, before, work = item
            try:
                before.wait()  # for what its stream had to do before
                self._compare(words)
                work(self._host)
            except Exception as error:
                made.error = error
                self._aborted.wait()  # a kernel whose peer is gone never ends
            made.fence.set()
        while not self._works.empty():
            if (item := self._works.get()) is not None:
                item[0].error = RuntimeError("stand_in: the communicator was aborted")
                item[0].fence.set()

    def _compare(self, words: list[int]) -> None:
        """Connect, and compare what all ranks have begun: NCCL would hang, or mix the numbers up."""
        if self._host is None:
            options = dist.ProcessGroupGloo._Options()
            options._timeout, options._threads = datetime.timedelta(seconds=30), 1
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            self._host = dist.ProcessGroupGloo(self._store, self._rank, self._size, options)
            self._host._set_default_timeout(FOREVER)
        mine = torch.tensor(words)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        self._host.allgather([everyone], [mine]).wait(FOREVER)
        devices = [int(other[-1]) for other in everyone]
        if len(set(devices)) < len(devices):
            first = next(rank for rank in range(self._size) if devices[rank] in devices[:rank])
            other = devices.index(devices[first])
            raise RuntimeError(
                f"stand_in: invalid usage, version 0.0\nLast error:\nDuplicate GPU detected : rank {first} and rank "
                f"{other} both on stand_in device {devices[first]}"
            )
        if any(other[:-1].tolist() != words[:-1] for other in everyone):
            raise RuntimeError(f"stand_in: ranks began different work: {[other.tolist() for other in everyone]}")


def _host_view(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor on the device as a tensor on the host: it is only a stand-in."""
    import ctypes

    if not tensor.numel():
        return torch.empty(0, dtype=tensor.dtype)
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    memory._keep = tensor  # type: ignore[attr-defined]  # as long as the view lives
    return torch.frombuffer(memory, dtype=tensor.dtype)


def _close_connections(group: Any, rank: int, size: int) -> None:
    """Close all connections of a gloo group, so that its threads go on."""
    for peer in range(size):
        if peer != rank:
            with contextlib.suppress(RuntimeError):
                group.recv([torch.zeros(1)], peer, UNUSED_TAG).wait(AT_ONCE)


def register() -> None:
    """Make these the collectives of the device in torch.distributed."""
    dist.Backend.register_backend("stand_in", StandInGroup, devices=["stand_in"])

"""Torch's key-value stores, which torchrun keeps, or rank 0 under Slurm; and any store as torch wants to see one.

Torch's store knows no secret: any program that reaches its port can read and write it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import stat
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreClient, c10d
from roundelay.runtimes.processes.transport.private_store import limit_silence

FOREVER = datetime.timedelta(days=365)
RawStore: TypeAlias = Any
"""One of torch's stores."""


class TorchClient:
    """A client of one of torch's stores; a blocking call occupies it."""

    def __init__(self, raw: RawStore, another: Callable[[], RawStore]) -> None:
        self.raw, self._another = raw, another
        self.secret = b""

    def clone(self) -> TorchClient:
        """Make a client for another thread."""
        return TorchClient(self._another(), self._another)

    def set(self, key: str, value: bytes) -> None:
        """Write a value; on return it is visible to all clients."""
        self.raw.set(key, value)
        self.raw.check([key])  # `set` does not wait for the store; the reply to this says that the value is there

    def get(self, key: str) -> bytes | None:
        """Return a value, if there is one."""
        return bytes(self.raw.get(key)) if self.raw.check([key]) else None

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it is there; torch says only whether all are."""
        return [bool(self.raw.check([key])) for key in keys]

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""
        return int(self.raw.add(key, amount))

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""
        self.raw.delete_key(key)

    def append(self, key: str, value: bytes) -> None:
        """Append to a value; return without waiting for the store."""
        self.raw.append(key, value)

    def setdefault(self, key: str, value: bytes) -> bytes:
        """Write a value if there is none; return the one that is there."""
        return bytes(self.raw.compare_set(key, "", value))

    def wait(self, key: str, timeout_seconds: float | None) -> None:
        """Block until there is such a key."""
        timeout = FOREVER if timeout_seconds is None else datetime.timedelta(seconds=timeout_seconds)
        try:
            self.raw.wait([key], timeout)
        except c10d.DistStoreError as error:
            raise TimeoutError(f"{key} is not there after {timeout_seconds} s") from error


class StoreForTorch(c10d.Store):  # type: ignore[misc]  # it has no annotations
    """Any store, as far as torch needs one to connect a group."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        super().__init__()
        self._client, self._prefix = client, prefix

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._client.set(self._prefix + key, bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, as soon as it is there."""
        self.wait([key])
        return self._client.get(self._prefix + key) or b""

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""
        return self._client.add(self._prefix + key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all these keys are there."""
        return all(self._client.present([self._prefix + key for key in keys]))

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Block until all these keys are there."""
        for key in keys:
            self._client.wait(self._prefix + key, timeout.total_seconds() if timeout is not None else None)


def for_torch(store: KeyValueStore, prefix: str) -> RawStore:
    """Return a store as torch wants to see one, with a prefix before every key."""
    client = store.client
    if isinstance(client, TorchClient):
        return c10d.PrefixStore(store.prefix + prefix, client.raw)
    return StoreForTorch(client, f"{store.prefix}{prefix}/")


def connect_torch_store(host: str, port: int, *, timeout_seconds: float = 60.0) -> KeyValueStore:
    """Connect to a store of torch on a port; later fail after so many seconds without a sign of its host."""

    def another() -> RawStore:
        timeout = datetime.timedelta(seconds=timeout_seconds)
        raw: RawStore = c10d.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        _limit_silence(host, port, timeout_seconds)
        return raw

    return KeyValueStore(TorchClient(another(), another))


def start_torch_store(host: str, port: int = 0) -> tuple[KeyValueStore, int]:
    """Keep a store of torch that listens on this address only; return it and its port."""
    listener = socket.create_server((host, port))
    port = listener.getsockname()[1]
    raw: RawStore = c10d.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )

    def another() -> RawStore:
        return c10d.TCPStore(host, port, is_master=False, wait_for_workers=False)

    return KeyValueStore(TorchClient(raw, another)), port


def _limit_silence(host: str, port: int, seconds: float) -> None:
    """Limit the silence of all connections of this process to a store on another host.

    Torch waits for a reply forever, and does not show its sockets.
    """
    address = socket.gethostbyname(host)
    if address.startswith("127."):
        return
    for number in _open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            peer = connection.getpeername()
            if isinstance(peer, tuple) and peer[0].removeprefix("::ffff:") == address and peer[1] == port:
                limit_silence(connection, seconds)


def _open_sockets() -> list[int]:
    """Return the file numbers of all open sockets of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
    return found

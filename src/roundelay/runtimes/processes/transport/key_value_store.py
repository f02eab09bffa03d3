"""JSON by key, for all learners and launchers of a run: in its own store, or in one that torchrun or Slurm has made."""

from __future__ import annotations

import hmac
import json
import re
import socket
from collections.abc import Sequence, Set
from typing import Any, Protocol

from roundelay.runtimes.processes.transport import private_store
from roundelay.runtimes.processes.transport.private_store import SocketClient

c10d, StoreGone = private_store.c10d, private_store.StoreGone


class StoreClient(Protocol):
    """A client of a store of bytes; a blocking call occupies it."""

    secret: bytes
    """What all clients of the run know, and nobody else; empty if torchrun or Slurm has made the store."""

    def clone(self) -> StoreClient:
        """Make a client for another thread."""

    def set(self, key: str, value: bytes) -> None:
        """Write a value; on return it is visible to all clients."""

    def get(self, key: str) -> bytes | None:
        """Return a value, if there is one."""

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""

    def append(self, key: str, value: bytes) -> None:
        """Append to a value; return without waiting for the store."""

    def setdefault(self, key: str, value: bytes) -> bytes:
        """Write a value if there is none; return the one that is there."""

    def wait(self, key: str, timeout_seconds: float | None) -> None:
        """Block until there is such a key; after a `TimeoutError` this client cannot be used any more."""


class KeyValueStore:
    """JSON in a store; a client for one thread, since a blocking call occupies it."""

    def __init__(self, client: StoreClient, prefix: str = "") -> None:
        self.client, self.prefix = client, prefix

    def clone(self) -> KeyValueStore:
        """Make a client for another thread."""
        return KeyValueStore(self.client.clone(), self.prefix)

    def lend(self) -> socket.socket:
        """Return a new connection to a store of this host, for a process that inherits it."""
        assert isinstance(self.client, SocketClient)
        return self.client.lend()

    def with_prefix(self, prefix: str) -> KeyValueStore:
        """Return the same store with a prefix before every key."""
        return KeyValueStore(self.client, f"{self.prefix}{prefix}/")

    def set(self, key: str, value: Any) -> None:
        """Write ``value``; on return it is visible to all clients."""
        self.client.set(self.prefix + key, json.dumps(value).encode())

    def get(self, key: str) -> Any:
        """Return the value, or ``None`` if there is none."""
        value = self.client.get(self.prefix + key)
        return json.loads(value) if value is not None else None

    def has(self, key: str) -> bool:
        """Return whether there is such a key."""
        return self.client.present([self.prefix + key])[0]

    def present(self, keys: Sequence[str]) -> Set[str]:
        """Return which of these keys there are, by one question."""
        there = self.client.present([self.prefix + key for key in keys]) if keys else []
        return {key for key, found in zip(keys, there, strict=True) if found}

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""
        return self.client.add(self.prefix + key, amount)

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""
        self.client.delete(self.prefix + key)

    def append(self, key: str, text: str) -> None:
        """Append to a log; return without waiting for the store."""
        self.client.append(self.prefix + key, text.encode())

    def log(self, key: str) -> str:
        """Return a log."""
        return (self.client.get(self.prefix + key) or b"").decode()

    def setdefault(self, key: str, value: Any) -> Any:
        """Write ``value`` if there is no such key; return the value that is there."""
        return json.loads(self.client.setdefault(self.prefix + key, json.dumps(value).encode()))

    def wait(self, key: str, timeout_seconds: float | None = None) -> None:
        """Block until there is such a key; raise `TimeoutError` after so many seconds, then make another client."""
        self.client.wait(self.prefix + key, timeout_seconds)

    def close(self) -> None:
        """Close this client; if it is the first one of its store, end the store."""
        if isinstance(self.client, SocketClient):
            self.client.close()

    def prove(self, text: str) -> bytes | None:
        """Return what only one who knows the run's secret can make of ``text``; ``None`` if the run has none."""
        return hmac.digest(self.client.secret, text.encode(), "sha256") if self.client.secret else None


def connect_store(host: str, port: int, *, timeout_seconds: float = 60.0, secret: bytes = b"") -> KeyValueStore:
    """Connect to the run's store on a port; later fail after so many seconds without a sign of its host."""
    return KeyValueStore(private_store.connect(host, port, secret, silence_seconds=timeout_seconds))


def inherited_store(file: int, secret: bytes) -> KeyValueStore:
    """Return the store whose connection the launcher has given to this process."""
    return KeyValueStore(SocketClient(socket.socket(fileno=file), secret))


def start_store(host: str | None = None, port: int = 0, *, secret: bytes = b"") -> tuple[KeyValueStore, int]:
    """Keep a store as long as its first client; return that client, and the port on which it listens at ``host``.

    Without ``host`` it listens nowhere, and the port is 0.
    """
    listener = socket.create_server((host, port)) if host is not None else None
    if listener is not None:
        port = listener.getsockname()[1]
    return KeyValueStore(private_store.start_server(secret, listener)), port


def torch_message(error: BaseException) -> str:
    """Return the message of an error of torch in one line, without its source position and its advice."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"^(\[[^]]*\.(cc|cpp|h):\d+\]\s*)+", "", line).partition(". This is typically")[0]

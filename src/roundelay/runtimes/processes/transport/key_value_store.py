"""JSON in one of torch's key-value stores; the launcher hosts it for the learners."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import socket
import stat
from collections.abc import Callable
from typing import Any, TypeAlias

import torch.distributed

FOREVER = datetime.timedelta(days=365)
c10d: Any = torch.distributed  # its type information is incomplete
RawStore: TypeAlias = Any
"""One of torch's stores."""
StoreGone: type[Exception] = c10d.DistError


class KeyValueStore:
    """JSON in one of torch's stores; a client for one thread, since a blocking call occupies it."""

    def __init__(self, raw: RawStore, another: Callable[[], RawStore]) -> None:
        self.raw, self._another = raw, another

    def clone(self) -> KeyValueStore:
        """Make a client for another thread."""
        return KeyValueStore(self._another(), self._another)

    def with_prefix(self, prefix: str) -> KeyValueStore:
        """Return the same store with a prefix before every key."""
        return KeyValueStore(c10d.PrefixStore(prefix, self.raw), lambda: c10d.PrefixStore(prefix, self._another()))

    def set(self, key: str, value: Any) -> None:
        """Write ``value``; on return it is visible to all clients."""
        self.raw.set(key, json.dumps(value))
        self.raw.check([key])  # `set` does not wait for the store; the reply to this says that the value is there

    def get(self, key: str) -> Any:
        """Return the value, or ``None`` if there is none."""
        return json.loads(self.raw.get(key)) if self.raw.check([key]) else None

    def has(self, key: str) -> bool:
        """Return whether there is such a key."""
        return bool(self.raw.check([key]))

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""
        return int(self.raw.add(key, amount))

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""
        self.raw.delete_key(key)

    def append(self, key: str, text: str) -> None:
        """Append to a log; return without waiting for the store."""
        self.raw.append(key, text)

    def log(self, key: str) -> str:
        """Return a log."""
        return str(self.raw.get(key), "ascii") if self.raw.check([key]) else ""

    def setdefault(self, key: str, value: Any) -> Any:
        """Write ``value`` if there is no such key; return the value that is there."""
        return json.loads(self.raw.compare_set(key, "", json.dumps(value)))

    def wait(self, key: str) -> None:
        """Block until there is such a key."""
        self.raw.wait([key], FOREVER)


def connect_store(host: str, port: int, *, timeout_seconds: float = 60.0) -> KeyValueStore:
    """Connect to the run's store."""

    def another() -> RawStore:
        timeout = datetime.timedelta(seconds=timeout_seconds)
        raw: RawStore = c10d.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        _limit_silence(host, port, timeout_seconds)
        return raw

    return KeyValueStore(another(), another)


def torch_message(error: BaseException) -> str:
    """Return the message of an error of torch in one line, without its source position and its advice."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"^(\[[^]]*\.(cc|cpp|h):\d+\]\s*)+", "", line).partition(". This is typically")[0]


def start_store(host: str, port: int = 0) -> tuple[KeyValueStore, int]:
    """Host a store that listens on this address only; return it and its port."""
    listener = socket.create_server((host, port))
    port = listener.getsockname()[1]
    raw: RawStore = c10d.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return KeyValueStore(raw, lambda: connect_store(host, port).raw), port


def _limit_silence(host: str, port: int, seconds: float) -> None:
    """Let connections to a store on another host fail after so many seconds without a sign of it.

    Torch waits for a reply forever: a host that vanishes without closing its connections would hang us.
    """
    address = socket.gethostbyname(host)
    if address.startswith("127."):
        return
    for number in _open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            peer = connection.getpeername()
            if isinstance(peer, tuple) and peer[0].removeprefix("::ffff:") == address and peer[1] == port:
                third = max(1, int(seconds / 3))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
                    connection.setsockopt(socket.IPPROTO_TCP, option, third)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def _open_sockets() -> list[int]:
    """Return the file numbers of all open sockets of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
    return found

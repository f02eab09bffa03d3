"""Where the processes of a user loop agree on a store of their own, which the first of them hosts.

Torch's store looks up the name of whoever connects, by a question to the name server that holds up all its clients: a
lost reply takes five seconds.  So each process uses it once at the most, and not at all where all are on one host:
there they meet in a file that only this user can read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from roundelay.errors import CommunicationError, RoundelayError
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.transport.key_value_store import (
    KeyValueStore,
    StoreGone,
    connect_store,
    start_store,
)

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.005
SECRET_BYTES = 32
HasEnded = Callable[[int], bool]


class Place(Protocol):
    """A way that the processes have already to tell each other something."""

    def put(self, key: str, value: str) -> None:
        """Write a value for all."""

    def get(self, key: str) -> str:
        """Return a value as soon as it is there."""


class Meeting(NamedTuple):
    """The store that all processes use from now on."""

    store: KeyValueStore
    address: str
    """The network address of this process."""


def meet(rank: int, size: int, place: Place) -> Meeting:
    """Agree on a store that rank 0 hosts."""
    place.put(f"host/{rank}", environment.host_name())
    alone = len({place.get(f"host/{number}") for number in range(size)}) == 1
    if rank == 0:
        address = LOOPBACK if alone else environment.local_address(_outside(), 1)
        secret = os.urandom(SECRET_BYTES)
        store, port = start_store(address, secret=secret)
        place.put("store", json.dumps([address, port, secret.hex()]))
    else:
        address, port, secret = _address(place.get("store"))
        try:
            store = connect_store(address, port, secret=secret)
        except (OSError, StoreGone, RoundelayError) as error:
            raise CommunicationError(f"rank {rank}: no store at {address}:{port} of rank 0: {error}") from error
    return Meeting(store, LOOPBACK if alone else environment.local_address(address if rank else _outside(), port))


def _address(text: str) -> tuple[str, int, bytes]:
    address, port, secret = json.loads(text)
    return str(address), int(port), bytes.fromhex(secret)


def _outside() -> str:
    """Return an address in the network by which other hosts reach this one."""
    return os.environ.get("MASTER_ADDR", "192.0.2.1")  # without a hint: by the default route


class StorePlace:
    """The store of torchrun or Slurm."""

    def __init__(self, store: KeyValueStore, has_ended: HasEnded) -> None:
        self._store, self._has_ended = store, has_ended

    def put(self, key: str, value: str) -> None:
        """Write a value for all."""
        self._store.set(f"meeting/{key}", value)

    def get(self, key: str) -> str:
        """Return a value as soon as it is there."""
        number = key.partition("/")[2] or "0"
        while (value := self._store.get(f"meeting/{key}")) is None:
            _miss(int(number), self._has_ended)
        return str(value)


def _miss(rank: int, has_ended: HasEnded) -> None:
    """Wait a moment for a process; raise if it has ended."""
    if has_ended(rank):
        raise CommunicationError(f"rank {rank} has ended before it called join")
    time.sleep(POLL_SECONDS)


# -- processes of torchrun on one host ------------------------------------------------------------------------------


def on_one_host(world: environment.World) -> bool:
    """Return whether torchrun has started all processes here, so that they can meet in a file."""
    return world.size > 1 and len(world.local_ranks) == world.size and _private_folder() is not None


def meeting_file(world: environment.World) -> Path:
    """Return the file in which the processes of this start of the job meet."""
    folder = _private_folder()
    assert folder is not None
    job = json.dumps([os.environ.get("TORCHELASTIC_RUN_ID"), world.store_address, world.attempt])
    return folder / hashlib.blake2b(job.encode(), digest_size=16).hexdigest()


def meet_in_file(world: environment.World, has_ended: HasEnded) -> Meeting:
    """Agree on a store that rank 0 hosts, and whose address it leaves in a file."""
    path = meeting_file(world)
    store = _host(path, world.size, has_ended) if world.rank == 0 else _find(path, world.rank, has_ended)
    return Meeting(store, LOOPBACK)


def _host(path: Path, size: int, has_ended: HasEnded) -> KeyValueStore:
    secret = os.urandom(SECRET_BYTES)
    store, port = start_store(LOOPBACK, secret=secret)
    work = path.with_suffix(f".{os.getpid()}")
    try:
        work.touch(mode=0o600)
        work.write_text(json.dumps([LOOPBACK, port, secret.hex()]))
        work.replace(path)
        for rank in range(1, size):
            while not store.has(f"met/{rank}"):
                _miss(rank, has_ended)
    finally:
        for each in (work, path):
            each.unlink(missing_ok=True)
    return store


def _find(path: Path, rank: int, has_ended: HasEnded) -> KeyValueStore:
    """Connect to the store; the file of an earlier job that was killed leads nowhere, and is written again."""
    while True:
        with contextlib.suppress(OSError, StoreGone, RoundelayError, ValueError):
            address, port, secret = _address(path.read_text())
            store = connect_store(address, port, secret=secret)
            store.set(f"met/{rank}", True)
            return store
        _miss(0, has_ended)


def _private_folder() -> Path | None:
    """Return a folder that this user alone can look into; ``None`` if another user has taken its name."""
    folder = Path(tempfile.gettempdir()) / f"roundelay-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    return folder if private else None

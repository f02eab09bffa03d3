"""Several hosts: each runs its own launcher; the first one hosts the store for all."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.entry_point import ErrorReport
from roundelay.runtimes.processes.environment import local_address
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, connect_store, start_store

POLL_SECONDS = 0.1
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Hosts:
    """The rendezvous of several launchers, one per host."""

    rendezvous: str
    """``HOST:PORT``; HOST is an address of the first host."""
    count: int
    number: int | None = None
    """Our number from 0; by default the host with that address is 0, others count in the order of arrival."""
    timeout_seconds: float = 120.0
    """How long to wait for the other hosts."""
    silence_seconds: float = 60.0
    """Seconds without a sign of the first host until the others give up."""
    token: str = ""
    """Word shared by all hosts of a run; hosts with another one are refused."""

    def parse(self) -> tuple[str, int]:
        """Return the address and the port of the rendezvous."""
        host, _, port = self.rendezvous.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingsError(f"rendezvous {self.rendezvous!r}: write HOST:PORT, such as 10.0.0.1:29500")
        if self.count < 1:
            raise SettingsError(f"hosts: at least 1, not {self.count}")
        try:
            return socket.gethostbyname(host), int(port)
        except OSError as error:
            raise SettingsError(f"rendezvous {self.rendezvous}: {host} is not known: {error.strerror}") from error


@dataclass(frozen=True)
class HostInfo:
    """This host in a run, when all hosts have arrived."""

    store: KeyValueStore
    store_address: tuple[str, int]
    """Host and port of the store."""
    number: int
    ranks: range
    """The ranks that this host runs."""
    address: str
    """Network address of this host's learners."""


def share(size: int, number: int, count: int) -> range:
    """Return the ranks, of ``size``, that host ``number`` of ``count`` runs."""
    return range(size * number // count, size * (number + 1) // count)


@contextlib.contextmanager
def rendezvous(hosts: Hosts, size: int) -> Iterator[HostInfo]:
    """Wait for the other hosts, among which ``size`` ranks are divided; on exit, leave them."""
    host, port = hosts.parse()
    first = _start_store(hosts, host, port)
    store = first or _connect_store(hosts, host, port)
    try:
        if first is not None:
            store.set("token", hosts.token)
        number = 0 if first is not None else _take_number(hosts, store)
        store.set(f"host/{number}", True)
        _await_all(hosts, store, "host", hosts.timeout_seconds)
        yield HostInfo(store, (host, port), number, share(size, number, hosts.count), local_address(host, port))
    except StoreGone as error:
        raise CommunicationError(f"rendezvous {hosts.rendezvous}: the first host is gone") from error
    else:
        with contextlib.suppress(StoreGone, CommunicationError):
            store.set(f"parted/{number}", True)
            if first is not None:  # the others may still read results from our store
                _await_all(hosts, store, "parted", min(CLOSE_SECONDS, hosts.timeout_seconds))


def fail_run(store: KeyValueStore, report: ErrorReport) -> None:
    """Tell the other launchers that the run has failed."""
    with contextlib.suppress(StoreGone):
        store.setdefault("failed", report)


def _start_store(hosts: Hosts, host: str, port: int) -> KeyValueStore | None:
    """Host the store if this is the first host; else return ``None``."""
    if hosts.number not in (None, 0):
        return None
    try:
        return start_store(host, port)[0]
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL and hosts.number is None:
            return None
        reason = "the port is in use; choose another" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise SettingsError(f"rendezvous {hosts.rendezvous}: {reason}") from error


def _connect_store(hosts: Hosts, host: str, port: int) -> KeyValueStore:
    """Connect to the first host's store, as soon as it is there."""
    deadline = time.monotonic() + hosts.timeout_seconds
    while True:
        try:
            with socket.create_connection((host, port), timeout=POLL_SECONDS * 10):
                break
        except OSError as error:
            if time.monotonic() > deadline:
                raise CommunicationError(
                    f"rendezvous {hosts.rendezvous}: the first host did not come in {hosts.timeout_seconds:g} s"
                ) from error
            time.sleep(POLL_SECONDS)
    try:
        return connect_store(host, port, timeout_seconds=hosts.silence_seconds)
    except (RuntimeError, StoreGone) as error:
        raise CommunicationError(f"rendezvous {hosts.rendezvous}: a program that is not Roundelay answers") from error


def _take_number(hosts: Hosts, store: KeyValueStore) -> int:
    store.wait("token")
    if store.get("token") != hosts.token:
        raise SettingsError(f"rendezvous {hosts.rendezvous}: another run is there, with another --token")
    number = hosts.number if hosts.number is not None else store.add("hosts", 1)
    if number >= hosts.count or store.has(f"host/{number}"):
        raise SettingsError(f"rendezvous {hosts.rendezvous}: all {hosts.count} hosts are there already")
    return number


def _await_all(hosts: Hosts, store: KeyValueStore, key: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    missing = set(range(hosts.count))
    while missing := {number for number in missing if not store.has(f"{key}/{number}")}:
        if time.monotonic() > deadline:
            here = hosts.count - len(missing)
            raise CommunicationError(
                f"rendezvous {hosts.rendezvous}: only {here} of {hosts.count} hosts came in {seconds:g} s"
            )
        time.sleep(POLL_SECONDS)
